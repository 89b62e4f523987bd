"""``up``: read the world, decide where everything goes, start it, wait until it has answered.

Nothing is written before the decision is complete, and whatever fails afterwards is taken back.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from servekit.backends import docker as docker_backend
from servekit.backends import local as local_backend
from servekit.backends.java import Runtime
from servekit.domain.deployment import Deployment, ModelState, State
from servekit.domain.gpu import plan_gpus
from servekit.domain.plan import Plan
from servekit.domain.project import Project
from servekit.errors import ConflictError, HostError
from servekit.system import deployments, docker, execute, java, nvml, ports, probe, process, project, signals
from servekit.verbs import down, precision, ready, select, trusted
from servekit.verbs.lost import lost

Progress = Callable[[str], None]


@dataclass(frozen=True)
class UpRequest:
    """What the user said. None means: not said."""

    models: tuple[str, ...] = ()
    gpus: str | None = None
    runtime: str | None = None
    name: str = "default"
    port: int | None = None
    calibrate: bool = True
    require_signature: Path | None = None


@dataclass(frozen=True)
class Prepared:
    """Everything decided, nothing done."""

    deployment: Deployment
    plan: Plan


def prepare(
    request: UpRequest, root: Path, held: ExitStack | None = None, progress: Progress = lambda _: None
) -> Prepared:
    """Decide.

    ``held`` keeps what is taken from other starts of this host. Without it (a dry run) nothing is taken,
    and not even the cache of unpacked archives is filled.
    """
    toml = project.load(root) or Project()
    host = deployments.host_paths(root, request.name)
    runtime, image, why = _runtime(request.runtime or toml.runtime.backend, toml.runtime.image)
    gpus = plan_gpus(toml.runtime.gpus if request.gpus is None else request.gpus, nvml.inventory())
    server = toml.server if request.port is None else replace(toml.server, port=request.port)
    infos = select.archives(request.models, toml, root, unpack=held is not None)
    trusted.check(infos, request.require_signature, runtime)
    models, notes = select.models(infos, toml, root, gpus, unpack=held is not None)
    models, told = precision.decide(
        models,
        infos,
        gpus,
        root,
        runtime=runtime,
        calibrate=request.calibrate,
        act=held is not None,
        signed=request.require_signature is not None,
        progress=progress,
    )
    deployment = Deployment(
        name=request.name,
        models=models,
        gpus=gpus,
        server=server,
        ports=ports.choose(server, held),
        runtime=runtime,
        host=host,
        inside=host if runtime == "local" else docker_backend.INSIDE,
        image=image,
    )
    plan = (
        _local_plan(deployment)
        if runtime == "local"
        else docker_backend.up(deployment, user=_user(), docker=docker.binary())
    )
    return Prepared(deployment, Plan(plan.steps, (why, *notes, *told, *plan.notes)))


def up(request: UpRequest, root: Path, progress: Progress) -> tuple[State, tuple[ready.Row, ...]]:
    """Start the deployment and return it once every model has answered. Raises ServekitError."""
    with deployments.lock(root, request.name), ExitStack() as held:
        _refuse_second(root, request.name, progress)
        prepared = prepare(request, root, held, progress)
        deployment = prepared.deployment
        for note in prepared.plan.notes:
            progress(note)
        _check_gpus(deployment, progress)
        try:
            started = time.monotonic()
            execute.run(prepared.plan)
            state = _state(deployment)
            deployments.save(state)
            progress(f"Starting TorchServe for {deployment.worker_count} worker(s) ...")
            rows = ready.wait(state, deployment, started, progress)
        except BaseException:
            with signals.held_back():
                try:
                    progress("Taking down what was started ...")
                finally:
                    down.take_down(deployment.host, deployment.runtime)
            raise
    return state, rows


def _refuse_second(root: Path, name: str, progress: Progress) -> None:
    """A deployment of this name that runs is in the way; the remains of one that died are cleared."""
    host = deployments.host_paths(root, name)
    if host.home in lost(root):
        raise ConflictError(
            f"A server of {name!r} still runs, although its folder {host.home} was deleted.",
            hint=f"Stop it with: servekit down --name {name}",
        )
    if not host.home.exists():
        return
    state = deployments.load(host.home)
    if process.servers(host.home) or (state and state.container and docker.running(state.container)):
        where = f" at {state.inference_url}" if state else ""
        raise ConflictError(
            f"The deployment {name!r} is up already{where}.",
            hint=f"Stop it with `servekit down --name {name}`, or start another beside it: up --name OTHER.",
        )
    progress(f"The server of {name!r} is gone (it crashed, or the host restarted); starting anew.")
    down.take_down(host, state.runtime if state else "local")


def _runtime(wanted: str, image: str | None) -> tuple[str, str | None, str]:
    """(runtime, image, why), said aloud. ``auto`` never starts a build."""
    tag = image or docker.DEFAULT_IMAGE
    if wanted == "local":
        return "local", None, "Runtime: a local process, as asked for."
    problem = docker.engine_problem()
    if wanted == "docker":
        if problem:
            raise HostError(f"--runtime docker: {problem}", hint="Start the engine, or use --runtime local.")
        if not docker.image_exists(tag):
            raise HostError(f"--runtime docker: there is no image {tag}.", hint="Build it: servekit build")
        return "docker", tag, f"Runtime: Docker, as asked for, with the image {tag}."
    if problem:
        return "local", None, f"Runtime: a local process, since no Docker engine is usable ({problem})"
    if not docker.image_exists(tag):
        return (
            "local",
            None,
            f"Runtime: a local process, since the Docker engine has no image {tag} (`servekit build` makes it).",
        )
    return "docker", tag, f"Runtime: Docker, since an engine answers and the image {tag} exists."


def _local_plan(deployment: Deployment) -> Plan:
    found = java.find_java()
    runtime = Runtime(found.path, found.major, sys.executable, java.torchserve_site())
    python_path, dropped = select.python_path(os.environ.get("PYTHONPATH", ""), deployment.models)
    plan = local_backend.up(deployment, runtime, os.environ, python_path)
    notes: tuple[str, ...] = (f"Java: {found.version} from {found.source}.",)
    if dropped:
        notes += (f"PYTHONPATH: dropped {', '.join(dropped)}, which would hide files of an archive.",)
    return Plan(plan.steps, notes)


def _check_gpus(deployment: Deployment, progress: Progress) -> None:
    """Before anything starts: does torch compute on the promised GPUs, where the server will run?"""
    if not deployment.gpus.count:
        return
    progress(f"Checking that torch computes on {', '.join(map(str, deployment.gpus.gpus))} ...")
    if deployment.runtime == "docker":
        docker.check_gpus(str(deployment.image), deployment.gpus)
    else:
        probe.check_cuda(deployment.gpus)


def _user() -> tuple[int, int]:
    return os.getuid(), os.getgid()


def _state(deployment: Deployment) -> State:
    return State(
        name=deployment.name,
        runtime=deployment.runtime,
        bind=deployment.server.bind,
        ports=deployment.ports,
        auth=deployment.server.auth,
        home=str(deployment.host.home),
        scratch=str(deployment.host.scratch),
        gpus=deployment.gpus.gpus,
        models=tuple(
            ModelState(
                name=model.name,
                version=model.version,
                workers=model.workers,
                batch_size=model.batch_size,
                sha256=model.sha256,
                archive=str(model.archive),
                example=str(model.unpacked / model.example) if model.example else None,
                handler_kind=model.handler_kind,
                proof=model.proof,
            )
            for model in deployment.models
        ),
        started_at=time.time(),
        container=docker_backend.container_name(deployment) if deployment.runtime == "docker" else None,
        image=deployment.image,
    )
