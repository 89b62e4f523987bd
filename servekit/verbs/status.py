"""``status``: what is up, asked of the servers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servekit.domain.deployment import State
from servekit.errors import NotRunningError, RequestError
from servekit.system import deployments, docker, process
from servekit.verbs import ready
from servekit.verbs.lost import lost


@dataclass(frozen=True)
class Status:
    """``condition``: ``up``, ``starting`` (no answer yet), ``degraded`` (a worker is missing), ``gone``, or
    ``lost``: a server runs whose folder was deleted, so that nothing but its name is known (``state`` None).
    """

    name: str
    state: State | None
    condition: str
    workers: tuple[ready.Row, ...]
    reason: str = ""


def status(root: Path, name: str | None) -> tuple[Status, ...]:
    """All deployments of the project, or the one called ``name`` (NotRunningError when there is none)."""
    left_alone = tuple(_lost(home) for home in lost(root) if name in (None, home.name))
    if name is not None and left_alone:
        return left_alone
    states = deployments.states(root) if name is None else (deployments.find(root, name),)
    return (*(_one(state) for state in states), *left_alone)


def _lost(home: Path) -> Status:
    reason = f"its server runs on, although {home} was deleted; stop it with: servekit down --name {home.name}"
    return Status(home.name, None, "lost", (), reason)


def _one(state: State) -> Status:
    home = Path(state.home)
    running = docker.running(state.container) if state.container else bool(process.servers(home))
    if not running:
        return Status(state.name, state, "gone", (), "its server process is not there; clear it with: servekit down")
    try:
        rows = ready.rows(state)
    except (NotRunningError, RequestError) as error:
        return Status(state.name, state, "starting", (), error.message)
    wanted = sum(model.workers for model in state.models)
    count = sum(row.status == "READY" for row in rows)
    if count < wanted:
        return Status(state.name, state, "degraded", rows, f"{count} of {wanted} workers are READY; see: servekit logs")
    return Status(state.name, state, "up", rows)
