"""The Docker engine, through its command line: contexts, remote engines and podman's docker work alike."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from servekit import __version__, assets
from servekit.domain.gpu import GpuPlan
from servekit.errors import GpuError, HostError
from servekit.system.probe import judge_cuda

DEFAULT_IMAGE = f"servekit:{__version__}"
LABEL_HOME = "servekit.home"
_NO_DRIVER = "could not select device driver"
_TOOLKIT_HINT = (
    "Install the NVIDIA Container Toolkit and restart the engine (nvidia-ctk runtime configure "
    "--runtime=docker; systemctl restart docker), or use --runtime local, or --gpus none."
)


def binary() -> str:
    """The docker command; SERVEKIT_DOCKER names another one."""
    return os.environ.get("SERVEKIT_DOCKER", "docker")


def engine_problem() -> str | None:
    """Why no engine can be used, in one sentence; None when one answers."""
    try:
        done = _call("version", "--format", "{{.Server.Version}}", timeout_s=10)
    except FileNotFoundError:
        return f"the command {binary()} is not installed."
    except PermissionError:
        return f"the command {binary()} may not be executed."
    except subprocess.TimeoutExpired:
        return "the engine did not answer within 10 s."
    return None if done.returncode == 0 else f"{_last_line(done.stderr) or 'the engine does not answer'}."


def image_exists(tag: str) -> bool:
    return _call("image", "inspect", "--format", "{{.Id}}", tag).returncode == 0


def check_gpus(image: str, gpus: GpuPlan) -> None:
    """Does torch compute on the planned GPUs inside a container of ``image``? Raises GpuError."""
    script = Path(__file__).resolve().parent.parent / "probes" / "cuda.py"
    argv = ("run", "--rm", "--network", "none", "--gpus", gpu_request(gpus), "--entrypoint", "python", "--interactive")
    done = _call(*argv, image, "-", timeout_s=180, stdin=script.read_text(encoding="utf-8"))
    if _NO_DRIVER in done.stderr:
        raise GpuError("This Docker engine cannot pass GPUs to containers.", hint=_TOOLKIT_HINT, detail=done.stderr)
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise GpuError(
            f"A container with --gpus {gpu_request(gpus)} did not run.", hint=_TOOLKIT_HINT, detail=done.stderr.strip()
        ) from None
    judge_cuda(result, gpus)


def gpu_request(gpus: GpuPlan) -> str:
    """The value of ``docker run --gpus``; quoted inside, since its parser splits at commas."""
    return f'"device={gpus.visible_devices}"'


def running(container: str) -> bool:
    done = _call("container", "inspect", "--format", "{{.State.Running}}", container)
    return done.returncode == 0 and done.stdout.strip() == "true"


def logs_tail(container: str, lines: int = 30) -> str:
    done = _call("logs", "--tail", str(lines), container)
    return (done.stdout + done.stderr).strip()


def containers(home: Path) -> tuple[str, ...]:
    """Ids of every container of the deployment in ``home``, running or not, by its label."""
    done = _call("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL_HOME}={home}")
    if done.returncode != 0:
        raise HostError(f"docker ps failed: {_last_line(done.stderr)}")
    return tuple(done.stdout.split())


def remove(home: Path) -> None:
    """Stop and remove the deployment's containers; nothing to do is fine."""
    for container in containers(home):
        _call("stop", "--time", "10", container, timeout_s=60)
        _call("rm", "--force", container, timeout_s=60)


def build(argv: tuple[str, ...]) -> None:
    """Run a build with its output on our stderr. HostError when it fails."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    done = subprocess.run(argv, stdout=2, check=False, env=environment)
    if done.returncode != 0:
        raise HostError(f"docker build failed with exit code {done.returncode}.", hint="Its output is above.")


@contextlib.contextmanager
def build_context(wheelhouse: Path | None) -> Iterator[Path]:
    """A temporary folder with docker/ and, when given, the wheels to install from."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="servekit-build-") as name:
        context = Path(name)
        shutil.copytree(assets.docker(), context, dirs_exist_ok=True)
        wheels = context / "wheelhouse"
        wheels.mkdir(exist_ok=True)
        for wheel in sorted(wheelhouse.iterdir()) if wheelhouse else ():
            try:  # gigabytes: a hard link where the file system allows it
                os.link(wheel, wheels / wheel.name)
            except OSError:
                shutil.copy2(wheel, wheels / wheel.name)
        yield context


def _call(*args: str, timeout_s: float = 30, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (binary(), *args), capture_output=True, text=True, timeout=timeout_s, check=False, input=stdin
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].rstrip(".") if lines else ""
