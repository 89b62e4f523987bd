"""What live tests share: projects packed once a session, and an end that accepts no remains."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import projects
import pytest

from servekit.system import deployments
from servekit.verbs.down import down

MakeProject = Callable[[str, Path], AbstractContextManager[Path]]


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A shell starts its background jobs with SIGINT ignored, and children inherit that: tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def make_project(tmp_path_factory: pytest.TempPathFactory) -> MakeProject:
    """``with make_project("echo", folder) as project``: a copy that ends with `down` and must leave nothing.

    ``echo`` is a user's handler without weights or torch; ``tensor`` a Linear(3, 2) called ``net``.
    """
    packed: dict[str, Path] = {}

    def original(kind: str) -> Path:
        if kind not in packed:
            folder = tmp_path_factory.mktemp(kind)
            if kind == "echo":
                projects.pack_handler(folder, "echo", projects.ECHO)
            else:
                projects.pack_tensor(folder)
            packed[kind] = folder
        return packed[kind]

    @contextlib.contextmanager
    def make(kind: str, folder: Path) -> Iterator[Path]:
        project = folder / "project"
        shutil.copytree(original(kind), project)
        try:
            yield project
            end(project)
        finally:
            projects.clear(project)  # when the test or `down` failed: no server outlives its test

    return make


def end(project: Path) -> None:
    """Take every deployment down as a user does. "default" is looked at also where its folder is gone."""
    names = {home.name for home in deployments.homes(project)}
    for name in sorted(names):
        down(project, name)
    for name in sorted(names | {"default"}):
        projects.nothing_left(project, name)


@pytest.fixture
def echo_project(make_project: MakeProject, tmp_path: Path) -> Iterator[Path]:
    with make_project("echo", tmp_path) as project:
        yield project


@pytest.fixture
def tensor_project(make_project: MakeProject, tmp_path: Path) -> Iterator[Path]:
    with make_project("tensor", tmp_path) as project:
        yield project


@pytest.fixture(scope="session")
def servekit() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``servekit(project, *args)``: `python -m servekit ARGS` as a child process in that folder."""
    return projects.servekit
