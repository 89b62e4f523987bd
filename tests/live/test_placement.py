"""Placement by the real frontend: it counts the integers of CUDA_VISIBLE_DEVICES, also where there is no GPU."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from projects import ECHO, clear, needs_java, nothing_left, pack_handler, pack_tensor

from servekit.domain.deployment import State
from servekit.domain.gpu import Gpu
from servekit.errors import GpuError, StartError
from servekit.system import deployments, nvml, probe, torchserve
from servekit.verbs.down import down
from servekit.verbs.status import status
from servekit.verbs.up import UpRequest, up

pytestmark = [pytest.mark.live, needs_java()]


def pretend(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    cards = tuple(Gpu(index, f"GPU-{index}", "Pretended") for index in range(count))
    monkeypatch.setattr(nvml, "inventory", lambda: cards)
    monkeypatch.setattr(nvml, "processes", lambda uuid: None)
    monkeypatch.setattr(probe, "check_cuda", lambda gpus: None)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    clear(tmp_path)


def start(project: Path, *models: str, gpus: str | None, name: str = "default") -> State:
    """No proof is asked for: torch cannot compute on a GPU that is only pretended."""
    state, _ = up(UpRequest(models, gpus, "local", name, calibrate=False), project, lambda _: None)
    return state


def seen(state: State, model: str, workers: int) -> dict[int, Any]:
    """gpu_id by pid of every worker, by asking until each has answered."""
    found: dict[int, Any] = {}
    for _ in range(40 * workers):
        answer = json.loads(torchserve.predict(state, model, b"x", "text/plain").body)
        found[answer["pid"]] = (answer["gpu"], answer["mask"])
        if len(found) == workers:
            break
    return found


def test_two_models_on_four_gpus(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 4)
    pack_handler(project, "a", ECHO)
    pack_handler(project, "b", ECHO)
    (project / "servekit.toml").write_text(
        'schema = 1\n[[models]]\nname = "a"\nhandler = "a_file.py"\n'
        '[[models]]\nname = "b"\nhandler = "b_file.py"\nworkers = 1\n'
    )
    state = start(project, gpus=None)
    by_pid = seen(state, "a", 4)
    assert sorted(gpu for gpu, _ in by_pid.values()) == [0, 1, 2, 3], "a worker a GPU, none twice"
    assert {mask for _, mask in by_pid.values()} == {"0,1,2,3"}
    assert [gpu for gpu, _ in seen(state, "b", 1).values()] == [0], "without deviceIds TorchServe begins with 1"
    down(project, "default")
    nothing_left(project)


def test_more_workers_than_gpus_and_a_worker_that_comes_back(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 2)
    pack_handler(project, "a", ECHO)
    pack_handler(project, "b", ECHO)
    (project / "servekit.toml").write_text(
        'schema = 1\n[[models]]\nname = "a"\nhandler = "a_file.py"\nworkers = 3\n'
        '[[models]]\nname = "b"\nhandler = "b_file.py"\n'
    )
    state = start(project, gpus="all")
    assert sorted(gpu for gpu, _ in seen(state, "a", 3).values()) == [0, 0, 1]
    before = {gpu: pid for pid, (gpu, _) in seen(state, "b", 2).items()}
    assert sorted(before) == [0, 1]
    os.kill(before[1], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while True:
        (shown,) = status(project, "default")
        pids = {row.pid for row in shown.workers if row.model == "b" and row.status == "READY"}
        if len(pids) == 2 and before[1] not in pids:
            break
        assert time.monotonic() < deadline, shown
        time.sleep(0.5)
    after = {gpu: pid for pid, (gpu, _) in seen(state, "b", 2).items()}
    assert sorted(after) == [0, 1], "it comes back on its own GPU"
    assert after[0] == before[0]
    down(project, "default")
    nothing_left(project)


def test_one_archive_in_two_deployments_on_different_gpus(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 4)
    pack_handler(project, "a", ECHO)
    archive = project / "model_store" / "a.mar"
    before = hashlib.sha256(archive.read_bytes()).hexdigest()
    left = start(project, "a", gpus="2,3", name="left")
    right = start(project, "a", gpus="1", name="right")
    assert sorted(seen(left, "a", 2).values()) == [(0, "2,3"), (1, "2,3")]
    assert list(seen(right, "a", 1).values()) == [(0, "1")]
    assert not set(left.ports.all()) & set(right.ports.all())
    assert [gpu.index for gpu in left.gpus] == [2, 3]
    copies = [path for path in deployments.cache(project).iterdir() if path.is_dir()]
    assert [path.name for path in copies] == [before], "one unpacked copy, by the archive's hash"
    for name in ("left", "right"):
        link = deployments.host_paths(project, name).home / "models" / "a" / "a_file.py"
        assert link.resolve() == copies[0] / "a_file.py"
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == before
    down(project, "left")
    assert list(seen(right, "a", 1).values()) == [(0, "1")], "the other one goes on"
    down(project, "right")
    nothing_left(project, "left")
    nothing_left(project, "right")


def test_our_handlers_never_serve_from_the_cpu_in_silence(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if __import__("torch").cuda.is_available():
        pytest.skip("there is a GPU here: it would be used")
    pretend(monkeypatch, 1)
    pack_tensor(project)
    with pytest.raises(StartError, match="the server assigned GPU 0") as caught:
        start(project, "net", gpus="0")
    assert "device.py" in caught.value.detail
    nothing_left(project)


def test_a_gpu_that_is_not_there(project: Path) -> None:
    pack_tensor(project)
    if nvml.inventory():
        pytest.skip("there is a GPU here")
    with pytest.raises(GpuError, match="this host shows no NVIDIA GPU"):
        start(project, "net", gpus="0")
    nothing_left(project)
