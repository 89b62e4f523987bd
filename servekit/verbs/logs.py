"""``logs``: what the workers and the server wrote, merged by time, and followed."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from pathlib import Path

from servekit.domain.deployment import State
from servekit.system import deployments, docker, process

FILES = ("model.log", "server.log", "console.log")
_POLL_S = 0.2


def logs(root: Path, name: str | None, *, lines: int, follow: bool, model: str | None) -> Iterator[str]:
    """The last ``lines`` lines; with ``follow`` then new ones until the deployment is gone."""
    state = deployments.find(root, name)
    if model is not None:
        deployments.served(state, model)
    paths = [Path(state.home) / "logs" / file for file in FILES]
    positions = {path: path.stat().st_size if path.is_file() else 0 for path in paths}
    merged = list(heapq.merge(*(_stamped(path, positions[path]) for path in paths), key=lambda pair: pair[0]))
    about = [line for _, line in merged if _about(line, model)]
    yield from about[max(0, len(about) - lines) :]
    while follow and _running(state):
        for path in paths:
            for line in _fresh(path, positions):
                if _about(line, model):
                    yield line
        time.sleep(_POLL_S)


def _stamped(path: Path, end: int) -> Iterator[tuple[str, str]]:
    """(time, line): a line without a time, as of a traceback in console.log, belongs to the one before."""
    stamp = ""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file.read(end).decode("utf-8", "replace").splitlines():
            stamp = line[:23] if line[:4].isdigit() else stamp
            yield stamp, line


def _fresh(path: Path, positions: dict[Path, int]) -> Iterator[str]:
    """Whole lines written since the last look; a rotated (shorter) file is read from its start."""
    if not path.is_file():
        return
    if path.stat().st_size < positions[path]:
        positions[path] = 0
    with path.open("rb") as file:
        file.seek(positions[path])
        block = file.read()
    whole = block.rfind(b"\n") + 1
    positions[path] += whole
    yield from block[:whole].decode("utf-8", "replace").splitlines()


def _about(line: str, model: str | None) -> bool:
    return model is None or f"-{model}_" in line


def _running(state: State) -> bool:
    return docker.running(state.container) if state.container else bool(process.servers(Path(state.home)))
