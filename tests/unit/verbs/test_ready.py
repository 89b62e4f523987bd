"""When a start has succeeded, when it has failed, and which GPU a worker is on."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from nouns import deployment, gpu, served, state

from servekit.domain.deployment import State
from servekit.errors import NotRunningError, StartError
from servekit.system import nvml, process, torchserve
from servekit.system.nvml import GpuProcess
from servekit.system.torchserve import Answer, ModelInfo, WorkerInfo
from servekit.verbs import canary, ready

STAMP = "2026-12-01T05:14:22,840 INFO  W-9000-digits_1.0-stdout - "


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment whose frontend runs, whose clock jumps a second a look, and whose driver tells nothing."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "workers").mkdir()
    clock = itertools.count(1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(process, "servers", lambda _: ("frontend",))
    monkeypatch.setattr(nvml, "processes", lambda _: None)
    return tmp_path


def workers(*pids: int, status: str = "READY") -> ModelInfo:
    listed = tuple(WorkerInfo(str(9000 + number), pid, status) for number, pid in enumerate(pids))
    return ModelInfo("digits", "1.0", len(pids), 8, 5, listed, 100, 0)


def serving(monkeypatch: pytest.MonkeyPatch, *answers: ModelInfo | Exception | None) -> None:
    """What describe says, in turn; the last for ever."""
    queue = list(answers)

    def describe(*_: Any, **__: Any) -> ModelInfo | None:
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(torchserve, "describe", describe)


def report(home: Path, pid: int, device: str) -> None:
    values = {"model": "digits", "pid": pid, "device": device, "precision": "bf16", "threads": 1, "load_s": 1}
    (home / "workers" / f"digits-{pid}.json").write_text(json.dumps(values))


def wait(home: Path, monkeypatch: pytest.MonkeyPatch, one: State | None = None, count: int = 2):
    monkeypatch.setattr(canary, "check", lambda *_: "answered in 1 ms")
    lines: list[str] = []
    plan = deployment(served(workers=count))
    return ready.wait(one or state(home, gpus=()), plan, 1000.0, lines.append), lines


def test_ready_is_all_workers_ready(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, NotRunningError("no"), None, workers(11), workers(11, 12, status="LOADING"), workers(11, 12))
    report(home, 11, "cpu")
    rows, lines = wait(home, monkeypatch)
    assert [(row.pid, row.status, row.gpu, row.checked, row.precision) for row in rows] == [
        (11, "READY", "cpu", "worker", "bf16"),
        (12, "READY", "cpu", "plan", "-"),
    ]
    assert {row.canary for row in rows} == {"answered in 1 ms"}
    assert len(lines) == 1 and "2 worker(s) READY" in lines[0]


def test_the_same_death_twice_is_the_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, workers())
    death = ["[PID]1", "Backend worker process died.", "Traceback (most recent call last):", "ImportError: no x"]
    log = home / "logs" / "model.log"
    log.write_text("".join(f"{STAMP}{line}\n" for line in death * 2))
    with pytest.raises(StartError, match="digits cannot start: ImportError: no x") as caught:
        wait(home, monkeypatch)
    assert "--extra-file" in caught.value.hint
    assert caught.value.detail.startswith("Traceback")


def test_one_death_is_not_the_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, workers(11, 12))
    death = ["[PID]1", "Backend worker process died.", "Traceback (most recent call last):", "OSError: busy"]
    (home / "logs" / "model.log").write_text("".join(f"{STAMP}{line}\n" for line in death))
    assert len(wait(home, monkeypatch)[0]) == 2


def test_workers_that_vanish_without_a_word(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, workers())
    (home / "logs" / "model.log").write_text(f"{STAMP}[PID]1\n" * 3)
    with pytest.raises(StartError, match="started 3 times and died without a Python traceback"):
        wait(home, monkeypatch)


def test_a_frontend_that_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, NotRunningError("no"))
    monkeypatch.setattr(process, "servers", lambda _: ())
    (home / "logs" / "console.log").write_text("Address already in use\n")
    with pytest.raises(StartError, match="ended while it was starting") as caught:
        wait(home, monkeypatch)
    assert caught.value.detail == "--- console.log\nAddress already in use"


def test_a_model_that_is_never_registered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, None)
    with pytest.raises(StartError, match="did not register digits"):
        wait(home, monkeypatch)


def test_patience_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, workers(11))
    with pytest.raises(StartError, match=r"Not ready after \d+ s: digits\.") as caught:
        wait(home, monkeypatch)
    assert "startup_timeout_s" in caught.value.hint


def test_a_worker_on_another_gpu_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, workers(11, 12))
    report(home, 12, "cpu")
    with pytest.raises(StartError, match=r"digits \(pid 12\) on cpu"):
        wait(home, monkeypatch, state(home))


def test_where_a_worker_is_driver_before_worker_before_plan(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan gives GPUs 1 and 3; worker 13 is the third, so on GPU 1 again."""
    serving(monkeypatch, workers(11, 12, 13))
    report(home, 11, "cuda:0")
    report(home, 12, "cuda:1")
    one = state(home, gpus=(gpu(1), gpu(3)))
    assert [(row.gpu, row.checked) for row in ready.rows(one)] == [
        ("GPU 1", "worker"),
        ("GPU 3", "worker"),
        ("GPU 1", "plan"),
    ]
    on_gpu = {gpu(1).uuid: (GpuProcess(13, 100),), gpu(3).uuid: (GpuProcess(12, None),)}
    monkeypatch.setattr(nvml, "processes", on_gpu.get)
    assert [row.checked for row in ready.rows(one)] == ["worker", "NVML", "NVML"]


def test_a_model_that_is_gone_has_no_rows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, None)
    assert ready.rows(state(home)) == ()


class Sent:
    def __init__(self, status: int = 200) -> None:
        self.status, self.bodies = status, list[tuple[bytes, str]]()

    def predict(self, _: State, __: str, body: bytes, content_type: str) -> Answer:
        self.bodies.append((body, content_type))
        return Answer(self.status, "application/json", b"no\n")


@pytest.mark.parametrize(
    ("file", "content_type"),
    [
        ("a.png", "image/png"),
        ("a.JPG", "image/jpeg"),
        ("a.json", "application/json"),
        ("a.txt", "text/plain"),
        ("a.npy", "application/octet-stream"),
        ("a", "application/octet-stream"),
    ],
)
def test_the_canary_sends_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content_type: str
) -> None:
    sent = Sent()
    monkeypatch.setattr(torchserve, "predict", sent.predict)
    (tmp_path / file).write_bytes(b"body")
    assert canary.check(state(), served(unpacked=tmp_path, example=file)).startswith("answered in ")
    assert sent.bodies == [(b"body", content_type)]


def test_the_canary_makes_up_what_our_handlers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent()
    monkeypatch.setattr(torchserve, "predict", sent.predict)
    canary.check(state(), served(example=None))
    assert sent.bodies[0][0].startswith(b"\x89PNG")
    config = {"handler": {"kind": "tensor", "tensor": {"input_shape": [2, 3]}}}
    canary.check(state(), served(example=None, config=config))
    assert json.loads(sent.bodies[1][0]) == [[0, 0, 0], [0, 0, 0]]
    for config in (
        {},
        {"handler": {"kind": "custom"}},
        {"handler": {"kind": "tensor", "tensor": {"input_shape": None}}},
    ):
        assert canary.check(state(), served(example=None, config=config)) == "not checked: no example"
    assert len(sent.bodies) == 2


def test_a_canary_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchserve, "predict", Sent(503).predict)
    with pytest.raises(StartError, match="answered its example with HTTP 503") as caught:
        canary.check(state(), served(example=None))
    assert caught.value.detail == "no"
