"""A deployment as a Docker container."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from servekit.backends.files import deployment_files
from servekit.backends.java import Runtime, server_argv
from servekit.domain.deployment import Deployment, Paths
from servekit.domain.plan import Argv, MakeFolder, Plan, RunCommand
from servekit.render.docker_options import gpu_options, mount_option

INSIDE = Paths(home=Path("/servekit/home"), cache=Path("/servekit/cache"), scratch=Path("/tmp"))  # noqa: S108
"""The folders as the container sees them."""

# What docker/Dockerfile installs, and where.
IMAGE_RUNTIME = Runtime(
    java="/opt/servekit/java", java_major=25, python="/opt/servekit/venv/bin/python", site="/opt/servekit/site"
)
IMAGE_USER = (10001, 10001)


def up(deployment: Deployment, *, user: tuple[int, int], docker: str = "docker") -> Plan:
    """Files, then ``docker run``.

    ``user`` is the caller's (uid, gid): the container runs as the same one, so that it may write the
    mounted folders; root's deployments run as the image's own user, who is given those folders.
    """
    owner = IMAGE_USER if user[0] == 0 else None
    return Plan(
        (
            *deployment_files(deployment, owner=owner),
            MakeFolder(deployment.host.cache, 0o755),
            RunCommand(run_argv(deployment, owner or user, docker)),
        )
    )


def container_name(deployment: Deployment) -> str:
    """Unique on the engine: two projects may both have a deployment called default."""
    digest = hashlib.sha256(os.fsencode(deployment.host.home)).hexdigest()[:8]
    return f"servekit-{deployment.name}-{digest}"


def run_argv(deployment: Deployment, user: tuple[int, int], docker: str) -> Argv:
    """The exact command. Only ``bind`` is published, and not gRPC; identity is in the labels."""
    host = deployment.host
    return (
        *(docker, "run", "--detach", "--init", "--pull", "never", "--restart", "no"),
        *("--name", container_name(deployment)),
        *("--label", f"servekit.deployment={deployment.name}"),
        *("--label", f"servekit.home={host.home}"),
        *_publish(deployment),
        *gpu_options(deployment.gpus),
        *("--user", f"{user[0]}:{user[1]}"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *mount_option(host.home, INSIDE.home, read_only=False),
        *mount_option(host.cache, INSIDE.cache, read_only=True),
        # exec: Java loads netty's native library from there.
        *("--tmpfs", f"{INSIDE.scratch}:rw,exec,mode=1777"),
        *("--shm-size", "1g"),  # Docker's 64 MB are too few for PyTorch's shared tensors
        *("--workdir", str(INSIDE.home)),
        *(word for key, value in _environment(deployment).items() for word in ("--env", f"{key}={value}")),
        str(deployment.image),
        *server_argv(IMAGE_RUNTIME, INSIDE),
    )


def _publish(deployment: Deployment) -> Argv:
    bind, ports = deployment.server.bind, deployment.ports
    host = f"[{bind}]" if ":" in bind else bind
    return tuple(
        word
        for port in (ports.inference, ports.management, ports.metrics)
        for word in ("--publish", f"{host}:{port}:{port}")
    )


def _environment(deployment: Deployment) -> Mapping[str, str]:
    scratch = str(INSIDE.scratch)
    threads = str(min(model.threads for model in deployment.models))
    return {
        "LC_ALL": "C.UTF-8",
        "LOG_LOCATION": f"{INSIDE.home}/logs",
        "METRICS_LOCATION": f"{INSIDE.home}/logs",
        "SERVEKIT_WORKER_REPORTS": f"{INSIDE.home}/workers",
        "TMPDIR": scratch,
        "TEMP": scratch,
        "HOME": scratch,
        # The caller's uid has no name in the image, and getpass.getuser() (torch's caches) wants one.
        "USER": "servekit",
        # Libraries read these before any handler can call torch.set_num_threads.
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
