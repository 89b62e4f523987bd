"""A deployment as a Docker container."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from servekit.backends.files import deployment_files
from servekit.backends.java import Runtime, server_argv
from servekit.domain.deployment import Deployment, Paths
from servekit.domain.plan import Argv, MakeFolder, Plan, RunCommand

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
    files = deployment_files(deployment, owner=owner)
    prepared = (*files, MakeFolder(deployment.host.cache, 0o755))
    return Plan((*prepared, RunCommand(run_argv(deployment, owner or user, docker))))


def container_name(deployment: Deployment) -> str:
    """Unique on the engine: two projects may both have a deployment called default."""
    digest = hashlib.sha256(os.fsencode(deployment.host.home)).hexdigest()[:8]
    return f"servekit-{deployment.name}-{digest}"


def run_argv(deployment: Deployment, user: tuple[int, int], docker: str) -> Argv:
    """The exact command. Identity is in labels; only loopback (or ``bind``) is published."""
    ports, host = deployment.ports, deployment.host
    threads = str(min(model.threads for model in deployment.models))
    publish = [
        argument
        for port in (ports.inference, ports.management, ports.metrics)
        for argument in ("--publish", f"{_bind(deployment)}:{port}:{port}")
    ]
    environment = {
        "LC_ALL": "C.UTF-8",
        "LOG_LOCATION": f"{INSIDE.home}/logs",
        "METRICS_LOCATION": f"{INSIDE.home}/logs",
        "SERVEKIT_WORKER_REPORTS": f"{INSIDE.home}/workers",
        "TEMP": str(INSIDE.scratch),
        "TMPDIR": str(INSIDE.scratch),
        "HOME": str(INSIDE.scratch),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if not deployment.gpus.count:
        # An image or engine may pass GPUs by default; the server was promised none.
        environment["NVIDIA_VISIBLE_DEVICES"] = "void"
    gpus = ("--gpus", f'"device={deployment.gpus.visible_devices}"') if deployment.gpus.count else ()
    return (
        docker,
        "run",
        "--detach",
        "--init",
        "--name",
        container_name(deployment),
        "--label",
        f"servekit.deployment={deployment.name}",
        "--label",
        f"servekit.home={host.home}",
        *gpus,
        *publish,
        "--user",
        f"{user[0]}:{user[1]}",
        "--workdir",
        str(INSIDE.home),
        "--volume",
        f"{host.home}:{INSIDE.home}",
        "--volume",
        f"{host.cache}:{INSIDE.cache}:ro",
        "--read-only",
        "--tmpfs",
        "/tmp:rw,exec,mode=1777",  # noqa: S108
        "--shm-size",
        "1g",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--restart",
        "no",
        *(argument for key, value in environment.items() for argument in ("--env", f"{key}={value}")),
        str(deployment.image),
        *server_argv(IMAGE_RUNTIME, INSIDE),
    )


def _bind(deployment: Deployment) -> str:
    bind = deployment.server.bind
    return f"[{bind}]" if ":" in bind else bind
