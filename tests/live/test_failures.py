"""What cannot start is told at once, in the model's own words, and leaves nothing."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import ECHO, argv, clear, environment, needs_java, nothing_left, pack_handler, servekit

from servekit.domain.server import ServerConfig
from servekit.errors import StartError
from servekit.system import deployments, ports, process
from servekit.verbs.up import UpRequest, up

pytestmark = [pytest.mark.live, needs_java()]

BROKEN = (
    "class Broken:\n    def initialize(self, context):\n        {}\n    def handle(self, data, context):\n        {}\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    clear(tmp_path)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("raise ValueError('no such layer')", "ValueError: no such layer"),
        ("raise RuntimeError('weights are cursed')", "RuntimeError: weights are cursed"),
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    ],
)
def test_the_models_own_traceback_comes_first(project: Path, line: str, cause: str) -> None:
    pack_handler(project, "m", BROKEN.format(line, "return data"))
    began = time.monotonic()
    done = servekit(project, "up", "--runtime", "local")
    assert done.returncode == 8
    assert time.monotonic() - began < 60, "TorchServe itself would go on for five minutes"
    assert f"Error: m cannot start: {cause}" in done.stderr
    traceback = done.stderr.index("Traceback (most recent call last):")
    assert traceback < done.stderr.index("Error:")
    assert 'm_file.py", line 3, in initialize' in done.stderr
    nothing_left(project)


def test_a_worker_that_dies_without_a_word(project: Path) -> None:
    pack_handler(project, "m", BROKEN.format("import os; os.kill(os.getpid(), 9)", "return data"))
    done = servekit(project, "up", "--runtime", "local")
    assert done.returncode == 8
    assert "died without a Python traceback" in done.stderr
    nothing_left(project)


def test_ready_but_not_answering(project: Path) -> None:
    pack_handler(project, "m", BROKEN.format("pass", "raise KeyError('first request')"))
    done = servekit(project, "up", "--runtime", "local")
    assert done.returncode == 8
    assert "answered its example with HTTP 503" in done.stderr
    nothing_left(project)


def test_loading_that_takes_too_long(project: Path) -> None:
    pack_handler(project, "m", BROKEN.format("import time; time.sleep(600)", "return data"))
    (project / "servekit.toml").write_text(
        'schema = 1\n[server]\nstartup_timeout_s = 4\n[[models]]\nname = "m"\nhandler = "m_file.py"\n'
    )
    done = servekit(project, "up", "--runtime", "local", timeout=200)
    assert done.returncode == 8
    assert "startup_timeout_s" in done.stderr
    nothing_left(project)


def test_java_that_ends_at_once(project: Path) -> None:
    pack_handler(project, "m", ECHO)
    fake = project / "fake" / "bin" / "java"
    fake.parent.mkdir(parents=True)
    fake.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && { echo \'openjdk version "17.0.9"\' >&2; exit 0; }\n'
        "echo 'the heap is haunted'\nexit 3\n"
    )
    fake.chmod(0o755)
    done = servekit(project, "up", "--runtime", "local", env=environment(JAVA_HOME=str(project / "fake")))
    assert done.returncode == 8
    assert "the heap is haunted" in done.stderr
    nothing_left(project)


def test_a_port_in_use(project: Path) -> None:
    pack_handler(project, "m", ECHO)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = servekit(project, "up", "--runtime", "local", "--port", str(min(port, 65531)))
    assert done.returncode == 7
    assert "is in use by" in done.stderr
    nothing_left(project)


@pytest.mark.parametrize("which", ["inference", "management", "grpc_inference"])
def test_a_port_lost_between_the_check_and_the_start(
    project: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    pack_handler(project, "m", ECHO)
    free = ports.choose(ServerConfig())
    monkeypatch.setattr(ports, "choose", lambda *_: free)
    began = time.monotonic()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", getattr(free, which)))
        taken.listen()
        with pytest.raises(StartError) as caught:
            up(UpRequest(("m",), "none", "local"), project, lambda _: None)
    assert time.monotonic() - began < 60
    assert "in use" in caught.value.detail
    nothing_left(project)


def without_a_reader(project: Path, *, server_started: bool) -> subprocess.Popen[bytes]:
    """``up`` whose stderr is closed under it: `servekit up 2>&1 | head -1`, or a terminal that went away."""
    child = subprocess.Popen(
        argv("up", "--runtime", "local"), cwd=project, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stderr is not None
    child.stderr.readline()
    home = deployments.host_paths(project, "default").home
    deadline = time.monotonic() + 30
    while server_started and not process.servers(home):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.stderr.close()
    return child


def test_nobody_reads_the_progress_any_more(project: Path) -> None:
    pack_handler(project, "m", ECHO)
    child = without_a_reader(project, server_started=False)
    assert child.wait(60) == 0
    assert servekit(project, "predict", "m", "example.txt").returncode == 0
    assert servekit(project, "down").returncode == 0
    nothing_left(project)


def test_a_terminal_that_was_closed(project: Path) -> None:
    pack_handler(project, "m", BROKEN.format("import time; time.sleep(600)", "return data"))
    child = without_a_reader(project, server_started=True)
    child.send_signal(signal.SIGHUP)
    assert child.wait(60) == 130
    nothing_left(project)


def test_ten_interruptions_leave_nothing(project: Path) -> None:
    pack_handler(project, "m", ECHO)
    moments = random.Random(20261201)
    for number in range(10):
        child = subprocess.Popen(
            argv("up", "--runtime", "local"), cwd=project, env=environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        moment = moments.uniform(0.0, 6.0)
        time.sleep(moment)
        child.send_signal(signal.SIGTERM if number % 5 == 4 else signal.SIGINT)
        _, said = child.communicate(timeout=60)
        if child.returncode == 0:  # it was up before we were
            assert servekit(project, "down").returncode == 0
        else:
            # In its first moments there is only Python, which dies of the signal itself.
            by_python = (-signal.SIGINT, -signal.SIGTERM) if moment < 1.0 else ()
            assert child.returncode in (130, *by_python), (moment, said)
        nothing_left(project)
