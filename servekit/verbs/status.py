"""``status``: what is up, asked of the servers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servekit.domain.deployment import State
from servekit.errors import NotRunningError, RequestError
from servekit.system import deployments, docker, process
from servekit.verbs import ready


@dataclass(frozen=True)
class Status:
    """``condition``: ``up``, ``starting`` (no answer yet), ``degraded`` (a worker is missing) or ``gone``."""

    state: State
    condition: str
    workers: tuple[ready.Row, ...]
    reason: str = ""


def status(root: Path, name: str | None) -> tuple[Status, ...]:
    """All deployments of the project, or the one called ``name`` (NotRunningError when there is none)."""
    states = deployments.states(root) if name is None else (deployments.find(root, name),)
    return tuple(_one(state) for state in states)


def _one(state: State) -> Status:
    home = Path(state.home)
    running = docker.running(state.container) if state.container else bool(process.servers(home))
    if not running:
        return Status(state, "gone", (), "its server process is not there; clear it with: servekit down")
    try:
        rows = ready.rows(state)
    except (NotRunningError, RequestError) as error:
        return Status(state, "starting", (), error.message)
    wanted = sum(model.workers for model in state.models)
    count = sum(row.status == "READY" for row in rows)
    if count < wanted:
        return Status(state, "degraded", rows, f"{count} of {wanted} workers are READY; see: servekit logs")
    return Status(state, "up", rows)
