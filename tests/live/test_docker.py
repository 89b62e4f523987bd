"""Servekit on a real Docker engine: the image, a deployment from start to end, the request for GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servekit import assets
from servekit.backends import docker as backend
from servekit.domain.gpu import Gpu, GpuPlan
from servekit.domain.plan import RunCommand
from servekit.errors import GpuError
from servekit.system import docker
from servekit.verbs import up as up_verb
from tests.live.docker_engine import HOOK, IMAGE, need_private_engine, private_engine

pytestmark = pytest.mark.docker

GPUS = GpuPlan((Gpu(0, "GPU-00", "Pretended"), Gpu(2, "GPU-22", "Pretended")))
ECHO = """
class EchoHandler:
    def initialize(self, context):
        self.gpu = context.system_properties.get("gpu_id")

    def handle(self, data, context):
        return [{"bytes": len(item.get("body") or item.get("data")), "gpu": self.gpu} for item in data]
"""
# Loads where it is packaged, not where it is served.
BROKEN = """
import os


class BrokenHandler:
    def initialize(self, context):
        if os.path.exists("/opt/servekit"):
            raise KeyError("the planted fault")

    def handle(self, data, context):
        return [None for _ in data]
"""


@pytest.fixture(scope="module")
def image() -> str:
    """The image under test: SERVEKIT_TEST_IMAGE, else this version's own.

    Whoever sets the variable (.ci/run does) means these tests to run: then a missing engine is no skip.
    """
    promised = os.environ.get("SERVEKIT_TEST_IMAGE")
    tag = promised or docker.DEFAULT_IMAGE
    problem = docker.engine_problem()
    if problem is None and not docker.image_exists(tag):
        problem = f"the engine has no image {tag}; servekit build makes it."
    if problem and promised:
        pytest.fail(f"SERVEKIT_TEST_IMAGE={tag}: {problem}")
    if problem:
        pytest.skip(f"Docker: {problem}")
    return tag


@pytest.fixture
def project(tmp_path: Path, image: str) -> Iterator[Path]:
    """A project folder, its name full of what mounts and labels mistake; taken down whatever happens."""
    root = tmp_path / "ein Prüfling, a:b"
    root.mkdir()
    (root / "servekit.toml").write_text(f'schema = 1\n[runtime]\nimage = "{image}"\n')
    (root / "echo.py").write_text(ECHO)
    (root / "broken.py").write_text(BROKEN)
    yield root
    for home in (root / ".servekit" / "deployments").glob("*"):
        docker.remove(home)


def servekit(root: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line in ``root``; its exit code must be ``code``."""
    done = subprocess.run(
        (sys.executable, "-m", "servekit", *args),
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(assets.docker().parent)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == code, f"servekit {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def in_container(image: str, *argv: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = (docker.binary(), "run", "--rm", "--network", "none", *options, image, *argv)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def free_port() -> int:
    """A first port of five; another process could still take it, which `up` would say."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return min(int(listener.getsockname()[1]), 65000)


class TestImage:
    def test_java_and_torch_start_for_any_user_on_a_read_only_file_system(self, image: str) -> None:
        options = ("--read-only", "--user", "4711:4711", "--cap-drop", "ALL")
        java = in_container(image, backend.IMAGE_RUNTIME.java, "-version", options=options)
        assert f'version "{backend.IMAGE_RUNTIME.java_major}.' in java.stderr
        script = "import numpy, os, torch, ts; print(torch.ones(2).sum().item(), ts.__version__, os.getuid())"
        python = in_container(image, backend.IMAGE_RUNTIME.python, "-c", script, options=options)
        assert python.stdout.split() == ["2.0", "0.12.0", "4711"], python.stderr

    def test_is_not_root_and_carries_neither_servekit_nor_models(self, image: str) -> None:
        script = "import importlib.util, os; print(os.getuid(), importlib.util.find_spec('servekit'))"
        assert in_container(image, "python", "-c", script).stdout.split() == ["10001", "None"]
        assert in_container(image, "find", "/", "-xdev", "-name", "*.mar").stdout == ""

    def test_files_of_the_server_are_private(self, image: str) -> None:
        assert in_container(image, "sh", "-c", "umask").stdout.strip() == "0077"

    def test_without_a_command_it_says_what_it_is_for(self, image: str) -> None:
        done = in_container(image)
        assert done.returncode == 64
        assert "servekit up --runtime docker" in done.stderr

    def test_the_gpu_check_runs_in_it(self, image: str) -> None:
        """The same script that judges GPUs; without one it must say so, and not fail to run."""
        result = docker.cuda_probe(image, GpuPlan())
        assert result["torch"].startswith("2.")
        assert result["devices"] == []
        assert result["error"]


class TestDeployment:
    def test_package_up_predict_status_logs_down(self, project: Path) -> None:
        servekit(project, "package", "--name", "echo", "--handler", "echo.py")
        archive = (project / "model_store" / "echo.mar").read_bytes()
        up = ("up", "echo", "--runtime", "docker", "--gpus", "none", "--port", str(free_port()), "--json")
        state = json.loads(servekit(project, *up).stdout)["deployment"]
        home = project / ".servekit" / "deployments" / "default"

        found = docker.inspect(state["container"])
        assert found is not None
        assert found.running
        assert found.labels["servekit.home"] == str(home)
        assert found.labels["servekit.deployment"] == "default"
        self._is_confined(found)
        key_file = home / "key_file.json"
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600

        (project / "five").write_bytes(b"12345")
        answer = json.loads(servekit(project, "predict", "echo", "five").stdout)
        assert answer == {"bytes": 5, "gpu": None}
        inference = f"http://127.0.0.1:{state['ports']['inference']}/predictions/echo"
        assert self._status(inference) == 400, "a request without a token was served"
        assert "up" in servekit(project, "status").stdout
        assert "Torch worker started" in servekit(project, "logs").stdout
        assert "is up already" in servekit(project, *up, code=7).stderr

        servekit(project, "down")
        assert docker.inspect(state["container"]) is None
        assert not home.exists()
        servekit(project, "down", code=9)
        assert (project / "model_store" / "echo.mar").read_bytes() == archive

    def test_a_container_that_was_killed_is_noticed_and_replaced(self, project: Path) -> None:
        servekit(project, "package", "--name", "echo", "--handler", "echo.py")
        up = ("up", "echo", "--runtime", "docker", "--gpus", "none", "--port", str(free_port()), "--json")
        state = json.loads(servekit(project, *up).stdout)["deployment"]
        subprocess.run((docker.binary(), "kill", state["container"]), check=True, capture_output=True)
        assert not docker.running(state["container"])
        assert "exit code 137" in docker.logs_tail(state["container"])
        assert "gone" in servekit(project, "status").stdout
        servekit(project, *up)
        assert docker.running(state["container"])

    def test_a_model_that_cannot_start_there_shows_its_traceback_and_leaves_nothing(self, project: Path) -> None:
        servekit(project, "package", "--name", "broken", "--handler", "broken.py")
        done = servekit(project, "up", "broken", "--runtime", "docker", "--gpus", "none", code=8)
        assert "KeyError: 'the planted fault'" in done.stderr
        home = project / ".servekit" / "deployments" / "default"
        assert docker.containers(home) == ()
        assert not home.exists()

    def test_an_image_that_does_not_exist_is_an_error_before_anything_starts(self, project: Path) -> None:
        servekit(project, "package", "--name", "echo", "--handler", "echo.py")
        (project / "servekit.toml").write_text('schema = 1\n[runtime]\nimage = "servekit:never-built"\n')
        done = servekit(project, "up", "echo", "--runtime", "docker", code=5)
        assert "servekit:never-built" in done.stderr
        assert "servekit build" in done.stderr
        assert not (project / ".servekit" / "deployments").exists()

    def _status(self, url: str) -> int:
        import requests

        return requests.post(url, data=b"x", timeout=10).status_code

    def _is_confined(self, container: docker.Container) -> None:
        """What the kernel says about the container's first process, not what the engine was told."""
        status = Path(f"/proc/{container.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        uid = backend.IMAGE_USER[0] if os.getuid() == 0 else os.getuid()
        assert fields["Uid"].split()[0] == str(uid)
        assert int(fields["CapBnd"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        mounts = Path(f"/proc/{container.pid}/mountinfo").read_text().splitlines()
        options = {line.split()[4]: line.split()[5].split(",")[0] for line in mounts}
        assert (options["/"], options["/servekit/cache"], options["/servekit/home"]) == ("ro", "ro", "rw")


class TestGpuRequest:
    """How the engine is asked for GPUs, on a machine that has none."""

    def test_an_engine_without_the_toolkit_is_a_clear_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        need_private_engine()
        if shutil.which(HOOK):
            pytest.skip("this machine has the NVIDIA Container Toolkit")
        with private_engine() as host:
            monkeypatch.setenv("DOCKER_HOST", host)
            with pytest.raises(GpuError, match="cannot pass GPUs") as caught:
                docker.check_gpus(IMAGE, GPUS)
        assert "could not select device driver" in caught.value.detail
        assert "NVIDIA Container Toolkit" in caught.value.hint

    def test_the_engine_passes_on_exactly_the_planned_gpus(
        self, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both containers that we ever start with GPUs: the check, and the server."""
        need_private_engine()
        servekit(project, "package", "--name", "echo", "--handler", "echo.py")
        request = up_verb.UpRequest(("echo",), gpus="none", runtime="docker", port=free_port())
        with contextlib.ExitStack() as held:
            deployment = up_verb.prepare(request, project, held).deployment
        # The private engine's network has no loopback to publish on.
        server = dataclasses.replace(deployment.server, bind="0.0.0.0")
        deployment = dataclasses.replace(deployment, gpus=GPUS, image=IMAGE, server=server)
        for folder in (deployment.host.home, deployment.host.cache):
            folder.mkdir(parents=True, exist_ok=True)
        record = tmp_path / "config.json"
        with private_engine(record) as host:
            monkeypatch.setenv("DOCKER_HOST", host)
            with pytest.raises(GpuError, match="exit code 127"):  # there is no Python in that image
                docker.check_gpus(IMAGE, GPUS)
            assert _asked_for(record)["NVIDIA_VISIBLE_DEVICES"] == "0,2"
            record.unlink()

            (run,) = (s for s in backend.up(deployment, user=(0, 0)).steps if isinstance(s, RunCommand))
            started = subprocess.run(run.argv, capture_output=True, text=True, check=False)
            assert record.exists(), started.stderr
            environment = _asked_for(record)
        assert environment["NVIDIA_VISIBLE_DEVICES"] == GPUS.visible_devices == "0,2"
        # Inside, they are numbered anew; TorchServe counts them by this mask.
        assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"

    def test_without_gpus_the_engine_is_asked_for_none(
        self, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        need_private_engine()
        record = tmp_path / "config.json"
        with private_engine(record) as host:
            monkeypatch.setenv("DOCKER_HOST", host)
            with pytest.raises(GpuError, match="exit code 127"):
                docker.check_gpus(IMAGE, GpuPlan())
        assert not record.exists()


def _asked_for(record: Path) -> dict[str, str]:
    """The environment of the container in whose name the hook was called: what the hook goes by."""
    config = json.loads(record.read_text())
    return dict(pair.split("=", 1) for pair in config["process"]["env"])
