"""The Docker engine, through its command line: whatever context or DOCKER_HOST that uses, we use."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servekit import __version__
from servekit.domain.gpu import GpuPlan
from servekit.errors import GpuError, HostError
from servekit.render.docker_options import gpu_options
from servekit.system.probe import judge_cuda

DEFAULT_IMAGE = f"servekit:{__version__}"
LABEL_HOME = "servekit.home"
_PROBE = Path(__file__).resolve().parent.parent / "probes" / "cuda.py"
_STOP_S = 10
_TOOLKIT_HINT = (
    "Install the NVIDIA Container Toolkit and restart the engine (nvidia-ctk runtime configure "
    "--runtime=docker; systemctl restart docker), or use --runtime local, or --gpus none."
)
# What engines say when the toolkit is missing (dockerd; containerd's CDI form).
_NO_TOOLKIT = ("could not select device driver", "unresolvable CDI devices")


@dataclass(frozen=True)
class Container:
    """A container as ``docker inspect`` describes it. ``exit_code`` is None while it runs or never ran."""

    name: str
    running: bool
    exit_code: int | None
    out_of_memory: bool
    pid: int | None
    """of its first process, in the host's numbering"""
    labels: dict[str, str]


def binary() -> str:
    """The docker command; SERVEKIT_DOCKER names another one."""
    return os.environ.get("SERVEKIT_DOCKER", "docker")


def engine_problem() -> str | None:
    """Why no engine can be used, in one sentence; None when one answers."""
    try:
        done = _call("version", "--format", "{{.Server.Version}}", timeout_s=10)
    except HostError as error:
        return error.message
    return None if done.returncode == 0 else _sentence(done.stderr, otherwise="the engine does not answer.")


def image_exists(tag: str) -> bool:
    return _call("image", "inspect", "--format", "{{.Id}}", tag).returncode == 0


def check_gpus(image: str, gpus: GpuPlan) -> None:
    """Does torch compute on the planned GPUs inside a container of ``image``? Raises GpuError."""
    judge_cuda(cuda_probe(image, gpus), gpus)


def cuda_probe(image: str, gpus: GpuPlan) -> dict[str, Any]:
    """What probes/cuda.py finds in a container with ``gpus``. GpuError when there is no such container."""
    done = _call(
        *("run", "--rm", "--interactive", "--pull", "never", "--network", "none"),
        *gpu_options(gpus),
        *("--entrypoint", "python", image, "-"),
        timeout_s=300,
        stdin=_PROBE.read_text(encoding="utf-8"),
    )
    if any(words in done.stderr for words in _NO_TOOLKIT):
        raise GpuError(
            "This Docker engine cannot pass GPUs to containers.", hint=_TOOLKIT_HINT, detail=done.stderr.strip()
        )
    try:
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise GpuError(
            f"The check of the GPUs in a container of {image} failed with exit code {done.returncode}.",
            hint=f"See above what Docker said. If the image is not one of `servekit build`, use one. {_TOOLKIT_HINT}",
            detail=(done.stderr or done.stdout).strip(),
        ) from None
    return result


def inspect(container: str) -> Container | None:
    """The container of this name or id; None when there is none."""
    done = _call("container", "inspect", container)
    if done.returncode != 0:
        if "no such container" in done.stderr.lower():
            return None
        raise HostError(f"docker inspect failed: {_sentence(done.stderr)}")
    found = json.loads(done.stdout)[0]
    state = found["State"]
    ended = state["Status"] in ("exited", "dead")
    return Container(
        name=found["Name"].removeprefix("/"),
        running=state["Running"],
        exit_code=state["ExitCode"] if ended else None,
        out_of_memory=state.get("OOMKilled", False),
        pid=state.get("Pid") or None,
        labels=found["Config"]["Labels"] or {},
    )


def running(container: str) -> bool:
    found = inspect(container)
    return found is not None and found.running


def logs_tail(container: str, lines: int = 30) -> str:
    """The container's last words, and how it ended when it did."""
    done = _call("logs", "--tail", str(lines), container)
    text = (done.stdout + done.stderr).strip()
    found = inspect(container)
    if found is None or found.exit_code is None:
        return text
    killed = ", killed for lack of memory" if found.out_of_memory else ""
    return f"{text}\nThe container ended with exit code {found.exit_code}{killed}.".strip()


def containers(home: Path) -> tuple[str, ...]:
    """Ids of every container of the deployment in ``home``, running or not, by its label."""
    done = _call("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL_HOME}={home}")
    if done.returncode != 0:
        raise HostError(f"docker ps failed: {_sentence(done.stderr)}")
    return tuple(done.stdout.split())


def homes() -> tuple[Path, ...]:
    """The homes of all containers of servekit on this engine; none where no engine answers."""
    try:
        shown = f'{{{{.Label "{LABEL_HOME}"}}}}'
        done = _call("ps", "--all", "--format", shown, "--filter", f"label={LABEL_HOME}", timeout_s=10)
    except HostError:  # no engine: no container
        return ()
    return tuple(Path(line) for line in done.stdout.splitlines() if line) if done.returncode == 0 else ()


def remove(home: Path) -> None:
    """Stop and remove the deployment's containers; nothing to do is fine. HostError when one stays."""
    for container in containers(home):
        _call("stop", "-t", str(_STOP_S), container, timeout_s=_STOP_S + 60)
        done = _call("rm", "--force", container, timeout_s=60)
        if done.returncode != 0 and inspect(container) is not None:
            raise HostError(
                f"The container {container[:12]} cannot be removed: {_sentence(done.stderr)}",
                hint=f"Look at it with: {binary()} inspect {container[:12]}; then repeat servekit down.",
            )


def _call(*args: str, timeout_s: float = 30, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command. HostError when it cannot be run or does not end; its exit code is the caller's."""
    argv = (binary(), *args)
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, input=stdin)
    except FileNotFoundError:
        raise HostError(
            f"the command {binary()} is not installed.", hint="Install Docker, or use --runtime local."
        ) from None
    except PermissionError:
        raise HostError(f"the command {binary()} may not be executed.") from None
    except subprocess.TimeoutExpired:
        raise HostError(
            f"`{binary()} {args[0]}` did not end within {timeout_s:g} s.", hint="Is the engine healthy? docker info"
        ) from None


def _sentence(text: str, otherwise: str = "it said nothing.") -> str:
    """The last line of what Docker said, closed as a sentence."""
    lines = text.strip().splitlines()
    if not lines:
        return otherwise
    return lines[-1] if lines[-1].endswith((".", "?", "!")) else f"{lines[-1]}."
