"""Deployments of a project on disk: ``.servekit/deployments/<name>/``; and their lock."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servekit.domain.deployment import STATE_SCHEMA, ModelState, Paths, State
from servekit.errors import ConfigError, ConflictError, NotRunningError, StorageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def folder(root: Path) -> Path:
    return root / ".servekit"


def cache(root: Path) -> Path:
    """Unpacked archives, one folder a SHA-256, shared by the project's deployments."""
    return folder(root) / "cache"


def host_paths(root: Path, name: str) -> Paths:
    """The folders of one deployment. The scratch folder is short: a socket's path holds 108 bytes."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a deployment's name.",
            hint="Use letters, digits, '_', '.' and '-', starting with a letter or digit, at most 63 characters.",
        )
    home = of_home(root) / name
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return Paths(home=home, cache=cache(root), scratch=Path(tempfile.gettempdir()) / f"servekit-{digest}")


def save(state: State) -> None:
    """Write state.json whole or not at all."""
    path = Path(state.home) / "state.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(state.to_dict(), indent=2) + "\n", encoding="utf-8")
    temporary.chmod(0o600)
    temporary.replace(path)


def load(home: Path) -> State | None:
    """The deployment recorded in ``home``; None when there is none (a start that never finished)."""
    try:
        data = json.loads((home / "state.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if data.get("schema") != STATE_SCHEMA:
        raise ConfigError(
            f"{home}/state.json has schema {data.get('schema')}; this servekit reads {STATE_SCHEMA}.",
            hint="Use the servekit that started this deployment to stop it.",
        )
    return State.from_dict(data)


def homes(root: Path) -> tuple[Path, ...]:
    """Every deployment folder of the project, also those without a state."""
    deployments = of_home(root)
    return tuple(sorted(path for path in deployments.iterdir() if path.is_dir())) if deployments.is_dir() else ()


def of_home(root: Path) -> Path:
    """The folder in which the project's deployments have their homes."""
    return folder(root) / "deployments"


def served(state: State, model: str) -> ModelState:
    """The model as the deployment serves it; NotRunningError when it does not."""
    found = state.model(model)
    if found is None:
        names = ", ".join(known.name for known in state.models)
        raise NotRunningError(
            f"{state.name} does not serve {model!r} (it serves: {names}).", hint="See: servekit status"
        )
    return found


def states(root: Path) -> tuple[State, ...]:
    return tuple(state for state in map(load, homes(root)) if state is not None)


def find(root: Path, name: str | None) -> State:
    """The deployment called ``name``, or the only one there is. Raises NotRunningError."""
    known = states(root)
    names = ", ".join(state.name for state in known) or "none"
    if name is None:
        if len(known) == 1:
            return known[0]
        if not known:
            raise NotRunningError(f"No deployment is up in {root}.", hint="Start one: servekit up")
        raise ConfigError(f"Several deployments are up ({names}).", hint="Name one with --name.")
    for state in known:
        if state.name == name:
            return state
    raise NotRunningError(
        f"There is no deployment {name!r} in {root} (there are: {names}).", hint="See: servekit status"
    )


@contextlib.contextmanager
def lock(root: Path, name: str) -> Iterator[None]:
    """One ``up`` or ``down`` of a deployment at a time; a second one is told, not queued."""
    path = folder(root) / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a", encoding="ascii")
    except OSError as error:
        raise StorageError(
            f"{path.parent} cannot be written: {error.strerror}.",
            hint="servekit keeps its deployments in the project folder; check its permissions and free space.",
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"Another servekit is starting or stopping {name!r} right now.",
                hint="Wait for it, then look: servekit status",
            ) from None
        yield
