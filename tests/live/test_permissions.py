"""Folders that an ordinary user may not write or read: one clear error, nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import ECHO, argv, environment, needs_java, nothing_left, pack_handler

pytestmark = [pytest.mark.live, needs_java()]


def as_ordinary_user() -> tuple[str, ...]:
    """What to put before a command so that permissions bind it, as they do not bind root."""
    if os.getuid() != 0:
        return ()
    prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    if shutil.which("setpriv") is None or subprocess.run((*prefix, "true"), check=False).returncode:
        pytest.skip("run as root, and setpriv cannot take away root's right to write everywhere")
    return prefix


def run(project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*as_ordinary_user(), *argv(*args)),
        cwd=project, env=environment(PYTHONDONTWRITEBYTECODE="1"), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Everybody may read here, nobody write."""
    root = tmp_path / "project"
    pack_handler(root, "m", ECHO)
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield root
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)


def tree(project: Path) -> set[Path]:
    return set(project.rglob("*"))


def test_a_store_that_cannot_be_written(project: Path) -> None:
    before = tree(project)
    done = run(project, "package", "--name", "m", "--handler", "m_file.py")
    assert done.returncode == 12, done.stderr
    assert "model_store" in done.stderr
    assert "Permission denied" in done.stderr
    assert tree(project) == before


def test_a_project_that_cannot_be_written(project: Path) -> None:
    before = tree(project)
    done = run(project, "up", "m", "--runtime", "local", "--gpus", "none")
    assert done.returncode == 12, done.stderr
    assert ".servekit" in done.stderr
    assert tree(project) == before
    nothing_left(project)


def test_init_where_nothing_can_be_written(project: Path) -> None:
    done = run(project, "init")
    assert done.returncode == 12, done.stderr
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize("locked", ["model_store", "model_store/m.mar"])
@pytest.mark.parametrize("words", [("up",), ("up", "m"), ("up", "--dry-run")])
def test_a_store_that_cannot_be_read(project: Path, locked: str, words: tuple[str, ...]) -> None:
    project.chmod(0o777)
    (project / locked).chmod(0)
    done = run(project, *words, "--runtime", "local", "--gpus", "none")
    assert done.returncode == 4, done.stderr
    assert "cannot be read" in done.stderr
    assert "Permission denied" in done.stderr
    nothing_left(project)


def test_an_archive_by_its_path_needs_no_store(project: Path) -> None:
    project.chmod(0o777)
    shutil.move(project / "model_store" / "m.mar", project / "m.mar")
    (project / "model_store").chmod(0)
    done = run(project, "up", "m.mar", "--runtime", "local", "--gpus", "none", "--dry-run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("status",), ("down",), ("logs",), ("token", "show")])
def test_a_deployment_of_somebody_else(project: Path, words: tuple[str, ...]) -> None:
    project.chmod(0o777)
    home = project / ".servekit" / "deployments" / "default"
    home.mkdir(parents=True)
    home.chmod(0)
    done = run(project, *words)
    assert done.returncode == 12, done.stderr
    assert "Permission denied" in done.stderr
    assert "internal error" not in done.stderr


def test_a_configuration_that_cannot_be_read(project: Path) -> None:
    project.chmod(0o777)
    (project / "servekit.toml").write_text("schema = 1\n")
    (project / "servekit.toml").chmod(0)
    done = run(project, "up", "--runtime", "local")
    assert done.returncode == 3, done.stderr
    assert "servekit.toml cannot be read: Permission denied" in done.stderr
