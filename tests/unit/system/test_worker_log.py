"""Workers' deaths in model.log. tests/contract/test_worker_deaths.py does the same with a real worker's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from servekit.system import worker_log
from servekit.system.worker_log import Failure

MASKED = """\
Traceback (most recent call last):
  File "ts/model_loader.py", line 108, in load
    module, function_name = self._load_handler_file(handler)
  File "mine.py", line 1, in <module>
    import no_such_package
ModuleNotFoundError: No module named 'no_such_package'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "ts/model_service_worker.py", line 301, in <module>
    worker.run_server()
  File "ts/model_loader.py", line 153, in _load_default_handler
    module = importlib.import_module(module_name, "ts.torch_handler")
ModuleNotFoundError: No module named 'ts.torch_handler.mine'"""

CHAINED = """\
Traceback (most recent call last):
  File "model.py", line 7, in load
    int("x")
ValueError: invalid literal

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "mine.py", line 9, in initialize
    raise RuntimeError("no model") from error
RuntimeError: no model"""

SIMPLE = """\
Traceback (most recent call last):
  File "mine.py", line 3, in initialize
    raise KeyError("w")
KeyError: 'w'"""


def lines(text: str, worker: str = "9000", model: str = "digits_1.0") -> list[str]:
    """As config/log4j2.xml writes what a worker prints."""
    stamp = "2026-12-01T05:14:22,840 INFO "
    return [f"{stamp} W-{worker}-{model}-stdout - {line}" for line in text.splitlines()]


def death(traceback: str, **where: str) -> list[str]:
    return lines("[PID]123\nTorch worker started.\nBackend worker process died.\n" + traceback, **where)


def test_one_death() -> None:
    (failure,) = worker_log.parse(death(SIMPLE))
    assert failure == Failure("digits", "9000", SIMPLE)
    assert failure.cause == "KeyError: 'w'"


def test_two_workers_interleaved() -> None:
    one, two = death(SIMPLE, worker="9000"), death(CHAINED, worker="9001", model="other_model_2.0")
    mixed = [line for pair in zip(one, two, strict=False) for line in pair] + two[len(one) :]
    assert worker_log.parse(mixed) == (
        Failure("digits", "9000", SIMPLE),
        Failure("other_model", "9001", CHAINED),
    )


def test_a_failed_import_is_not_masked_by_torchserves_second_try() -> None:
    (failure,) = worker_log.parse(death(MASKED))
    assert failure.cause == "ModuleNotFoundError: No module named 'no_such_package'"
    assert "ts.torch_handler" not in failure.traceback


def test_the_users_own_chain_is_kept_whole() -> None:
    (failure,) = worker_log.parse(death(CHAINED))
    assert failure.traceback == CHAINED
    assert failure.cause == "RuntimeError: no model"


def test_a_traceback_still_being_written_is_no_failure_yet() -> None:
    written = death(SIMPLE)
    for count in range(len(written)):
        assert worker_log.parse(written[:count]) == ()
    assert len(worker_log.parse(written)) == 1


def test_tries_are_counted_one_by_one() -> None:
    found = worker_log.parse(death(SIMPLE) + death(CHAINED) + death(SIMPLE))
    assert [failure.cause for failure in found] == ["KeyError: 'w'", "RuntimeError: no model", "KeyError: 'w'"]


def test_the_next_try_ends_a_traceback_without_taking_its_lines() -> None:
    (failure,) = worker_log.parse(
        death(SIMPLE) + lines("s_name_part0=/tmp/.ts.sock, s_name_part1=9000, pid=77\nListening")
    )
    assert failure.traceback == SIMPLE


def test_what_workers_print_otherwise_is_no_failure() -> None:
    assert worker_log.parse(lines(SIMPLE)) == (), "a traceback the worker survived"
    assert worker_log.parse(["", "no pattern", "Backend worker process died."]) == ()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_names_with_underscores_dots_and_dashes(stream: str) -> None:
    written = [line.replace("-stdout", f"-{stream}") for line in death(SIMPLE, model="my_model-v2.x_1.0-rc")]
    assert [failure.model for failure in worker_log.parse(written)] == ["my_model-v2.x"]


def test_files(tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    assert worker_log.failures(log) == ()
    assert worker_log.starts(log) == {}
    text = "\n".join(death(SIMPLE) + death(SIMPLE) + death(SIMPLE, worker="9001")) + "\n"
    log.write_bytes(text.encode() + b"\xff\xfe\n")
    assert len(worker_log.failures(log)) == 3
    assert worker_log.starts(log) == {("digits", "9000"): 2, ("digits", "9001"): 1}


def test_a_runtime_error_that_torchserve_caught_is_told_in_its_own_words() -> None:
    def at(text: str) -> str:
        return f"2026-12-01T05:14:22,840 INFO  W-9000-net_1.0-stdout - {text}"

    log = [
        at("Failed to load model net, exception bad weights"),
        at("Traceback (most recent call last):"),
        at('  File "h.py", line 3, in initialize'),
        at("RuntimeError: bad weights"),
        at("Backend worker process died."),
        at("Traceback (most recent call last):"),
        at('  File "model_service_worker.py", line 258, in <module>'),
        at("RuntimeError: 500 - Unknown exception"),
    ]
    (failure,) = worker_log.parse(log)
    assert failure.cause == "RuntimeError: bad weights"
    assert failure.model == "net"
