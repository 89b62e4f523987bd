"""What a real worker prints when it dies is understood by system/worker_log.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from worker_process import lay_out, start

from servekit.system import worker_log

BROKEN = {
    "an import that is missing": ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
    "an exception of initialize": (
        "class H:\n    def initialize(self, context):\n        raise ValueError('no luck')\n"
        "    def handle(self, data, context):\n        return data\n",
        "ValueError: no luck",
    ),
    "a syntax error": ("def f(:\n", "SyntaxError: invalid syntax"),
}


@pytest.mark.parametrize(("source", "cause"), BROKEN.values(), ids=BROKEN)
def test_the_users_own_error_is_the_cause(tmp_path: Path, source: str, cause: str) -> None:
    folder = lay_out(tmp_path, "mine.py", {"schema": 1, "kind": "custom"}, {"mine.py": source})
    with start(folder) as worker:
        worker.load(folder, "mine.py", batch_size=1)
        worker.process.wait(timeout=60)
        printed = worker.output
    # The frontend copies each line into model.log in the form of config/log4j2.xml.
    stamp = "2026-12-01T05:14:22,840 INFO  W-9000-m_1.0-stdout - "
    lines = [f"{stamp}{line}" for line in printed.splitlines()]
    (failure,) = worker_log.parse(lines)
    assert (failure.model, failure.cause) == ("m", cause)
    assert "ts.torch_handler" not in failure.cause
    twice = worker_log.parse(lines + lines)
    assert [one.cause for one in twice] == [cause, cause]
