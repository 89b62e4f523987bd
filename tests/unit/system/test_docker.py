"""What we make of Docker's answers; the engine itself is in tests/live/test_docker.py."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servekit.domain.gpu import Gpu, GpuPlan
from servekit.errors import GpuError, HostError
from servekit.system import docker

GPUS = GpuPlan((Gpu(2, "GPU-22", "Pretended"),))
Answer = Callable[..., tuple[int, str, str]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[tuple[str, ...]]]:
    """Let Docker answer with (exit code, stdout, stderr); the list fills with the commands it was given."""

    def use(answer: Answer) -> list[tuple[str, ...]]:
        calls: list[tuple[str, ...]] = []

        def call(*args: str, **_: Any) -> subprocess.CompletedProcess[str]:
            calls.append(args)
            return subprocess.CompletedProcess(args, *answer(*args))

        monkeypatch.setattr(docker, "_call", call)
        return calls

    return use


def _inspected(**state: Any) -> str:
    state = {"Status": "running", "Running": True, "ExitCode": 0, "OOMKilled": False, "Pid": 7} | state
    return json.dumps([{"Name": "/servekit-web-1", "State": state, "Config": {"Labels": {"servekit.home": "/h"}}}])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((0, "20.10.24\n", ""), None),
        ((1, "\n", "Cannot connect to the daemon. Is it running?\n"), "Cannot connect to the daemon. Is it running?"),
        ((1, "", "permission denied"), "permission denied."),
        ((1, "", ""), "the engine does not answer."),
    ],
)
def test_engine_problem(answers: Any, answer: tuple[int, str, str], problem: str | None) -> None:
    answers(lambda *_: answer)
    assert docker.engine_problem() == problem


def test_inspect_reads_a_running_container(answers: Any) -> None:
    answers(lambda *_: (0, _inspected(), ""))
    found = docker.inspect("servekit-web-1")
    assert found == docker.Container("servekit-web-1", True, None, False, 7, {"servekit.home": "/h"})
    assert docker.running("servekit-web-1")


def test_no_container_is_none_but_no_engine_is_an_error(answers: Any) -> None:
    answers(lambda *_: (1, "[]", "Error: No such container: x"))
    assert docker.inspect("x") is None
    assert not docker.running("x")
    answers(lambda *_: (1, "", "Cannot connect to the Docker daemon"))
    with pytest.raises(HostError, match="Cannot connect"):
        docker.running("x")


def test_last_words_say_how_it_ended(answers: Any) -> None:
    state = {"Status": "exited", "Running": False, "ExitCode": 137, "OOMKilled": True, "Pid": 0}
    answers(lambda *args: (0, "one\n", "two\n") if args[0] == "logs" else (0, _inspected(**state), ""))
    assert docker.logs_tail("x") == "one\ntwo\nThe container ended with exit code 137, killed for lack of memory."


@pytest.mark.parametrize(
    "stderr",
    [
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        "docker: Error response from daemon: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0",
    ],
)
def test_an_engine_without_the_toolkit_is_a_gpu_error_with_the_remedy(answers: Any, stderr: str) -> None:
    answers(lambda *_: (125, "", stderr))
    with pytest.raises(GpuError, match="cannot pass GPUs") as caught:
        docker.check_gpus("servekit:1", GPUS)
    assert "NVIDIA Container Toolkit" in caught.value.hint
    assert caught.value.detail == stderr


def test_a_container_that_cannot_compute_is_a_gpu_error(answers: Any) -> None:
    result = {"torch": "2.13.0", "cuda": None, "devices": [], "error": "this torch is a CPU build"}
    calls = answers(lambda *_: (0, f"a banner\n{json.dumps(result)}\n", ""))
    with pytest.raises(GpuError, match="this torch is a CPU build"):
        docker.check_gpus("servekit:1", GPUS)
    assert ("--gpus", '"device=2"') in list(zip(calls[0], calls[0][1:], strict=False))


def test_a_container_that_computes_on_the_promised_gpu_passes(answers: Any) -> None:
    device = {"name": "Pretended", "uuid": "GPU-22", "error": None}
    result = {"torch": "2.13.0", "cuda": "13.0", "devices": [device], "error": None}
    answers(lambda *_: (0, json.dumps(result), ""))
    docker.check_gpus("servekit:1", GPUS)


def test_any_other_failure_of_the_check_shows_what_docker_said(answers: Any) -> None:
    answers(lambda *_: (127, "", 'exec: "python": executable file not found in $PATH'))
    with pytest.raises(GpuError, match="exit code 127") as caught:
        docker.check_gpus("alpine", GPUS)
    assert "executable file not found" in caught.value.detail


def test_remove_stops_then_removes_every_container_of_the_deployment(answers: Any) -> None:
    calls = answers(lambda *args: (0, "aa\nbb\n", "") if args[0] == "ps" else (0, "", ""))
    docker.remove(Path("/srv/p, q"))
    assert "label=servekit.home=/srv/p, q" in calls[0]
    assert [(call[0], call[-1]) for call in calls[1:]] == [
        ("stop", "aa"),
        ("rm", "aa"),
        ("stop", "bb"),
        ("rm", "bb"),
    ]


def test_remove_says_so_when_a_container_stays(answers: Any) -> None:
    def answer(*args: str) -> tuple[int, str, str]:
        return {"ps": (0, "aa\n", ""), "container": (0, _inspected(), "")}.get(args[0], (1, "", "device busy"))

    answers(answer)
    with pytest.raises(HostError, match="aa cannot be removed: device busy"):
        docker.remove(Path("/h"))


def test_remove_does_not_mind_that_somebody_else_was_faster(answers: Any) -> None:
    def answer(*args: str) -> tuple[int, str, str]:
        return (0, "aa\n", "") if args[0] == "ps" else (1, "", "Error: No such container: aa")

    answers(answer)
    docker.remove(Path("/h"))
