"""Processes are started by the executor, found by their label and ended with their workers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from servekit.domain.plan import Plan, RunCommand, StartProcess
from servekit.errors import HostError, StorageError
from servekit.system import execute, process

# A frontend that starts one worker; "deaf" ignores SIGTERM, "helped" has a child that is no worker.
FRONTEND = """
import pathlib, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen((sys.executable, "model_service_worker.py"))
if "helped" in sys.argv:
    subprocess.Popen((sys.executable, "-c", "import time; time.sleep(120)"))
pathlib.Path("ready").touch()
time.sleep(120)
"""
Start = Callable[..., psutil.Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a frontend with its worker; whatever a test leaves is killed."""
    started: list[psutil.Process] = []

    def run(home: Path, *words: str) -> psutil.Process:
        home.mkdir()
        (home / "model_service_worker.py").write_text("import time\ntime.sleep(120)\n")
        argv = (sys.executable, "-c", FRONTEND, f"-Dservekit.home={home}", *words)
        env = {"PATH": os.environ["PATH"], "SERVEKIT_WORKER_REPORTS": str(home / "workers")}
        done = execute.run(Plan((StartProcess(argv, home, env, home / "log"),)))
        frontend = psutil.Process(done.processes[0].pid)
        started.append(frontend)
        wait_for(lambda: (home / "ready").exists())
        started.extend(frontend.children())
        return frontend

    yield run
    for one in started:
        if one.is_running():
            one.kill()
    psutil.wait_procs(started, timeout=10)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        time.sleep(0.02)


def alive(one: psutil.Process) -> bool:
    return one.is_running() and one.status() != psutil.STATUS_ZOMBIE


def test_started_in_a_session_of_its_own_with_the_plans_environment(tmp_path: Path, start: Start) -> None:
    frontend = start(tmp_path / "a")
    assert os.getsid(frontend.pid) == frontend.pid != os.getsid(0)
    assert frontend.cwd() == str(tmp_path / "a")
    assert set(frontend.environ()) - {"LC_CTYPE"} == {"PATH", "SERVEKIT_WORKER_REPORTS"}
    assert process.servers(tmp_path / "a") == (frontend,)


def test_stop_ends_the_family_and_nobody_else(tmp_path: Path, start: Start) -> None:
    mine, other = start(tmp_path / "a"), start(tmp_path / "ab")
    (worker,) = mine.children()
    assert process.stop(tmp_path / "a", grace_s=10)
    assert not alive(mine)
    assert not alive(worker)
    assert alive(other)
    assert len(other.children()) == 1
    assert process.stop(tmp_path / "a", grace_s=1) is False


def test_a_worker_whose_frontend_was_killed(tmp_path: Path, start: Start) -> None:
    frontend = start(tmp_path / "a")
    (worker,) = frontend.children()
    frontend.kill()
    frontend.wait(timeout=10)
    assert process.servers(tmp_path / "a") == ()
    assert alive(worker)
    assert process.stop(tmp_path / "a", grace_s=5)
    wait_for(lambda: not alive(worker))


def test_a_frontend_that_ignores_being_asked(tmp_path: Path, start: Start) -> None:
    frontend = start(tmp_path / "a", "deaf")
    assert process.stop(tmp_path / "a", grace_s=0.5)
    assert not alive(frontend)


def test_children_that_are_no_workers_go_too(tmp_path: Path, start: Start) -> None:
    children = start(tmp_path / "a", "helped").children()
    assert len(children) == 2
    assert process.stop(tmp_path / "a", grace_s=5)
    wait_for(lambda: not any(map(alive, children)))


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    plan = Plan((StartProcess((str(tmp_path / "nothing"),), tmp_path, {}, tmp_path / "log"),))
    with pytest.raises(StorageError, match="nothing: No such file"):
        execute.run(plan)


def test_commands_are_run_to_their_end() -> None:
    done = execute.run(Plan((RunCommand((sys.executable, "-c", "print('id')")),)))
    assert done.outputs == ["id"]
    failing = Plan((RunCommand((sys.executable, "-c", "import sys; sys.exit('why')")),))
    with pytest.raises(HostError, match="failed with exit code 1") as caught:
        execute.run(failing)
    assert caught.value.detail == "why"


def test_who_listens_is_said_as_well_as_can_be() -> None:
    assert process.port_owner(1) == "another process"
