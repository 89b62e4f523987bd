"""The vocabulary of effects. A backend returns a Plan; the executor carries it out; ``--dry-run`` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Argv = tuple[str, ...]


@dataclass(frozen=True)
class MakeFolder:
    path: Path
    mode: int = 0o700
    owner: tuple[int, int] | None = None
    """(uid, gid) to hand the folder to, when a container's user writes into it."""


@dataclass(frozen=True)
class WriteFile:
    path: Path
    text: str
    mode: int = 0o600


@dataclass(frozen=True)
class Link:
    """A symbolic link at ``path`` to ``target``, which need not exist here (a container's path)."""

    path: Path
    target: str


@dataclass(frozen=True)
class StartProcess:
    """A server process in its own session. ``env`` is the whole environment of the child."""

    argv: Argv
    cwd: Path
    env: Mapping[str, str]
    log: Path
    umask: int = 0o077


@dataclass(frozen=True)
class RunCommand:
    """A command that ends by itself, its output kept; non-zero is an error."""

    argv: Argv


Step = MakeFolder | WriteFile | Link | StartProcess | RunCommand


@dataclass(frozen=True)
class Plan:
    """Steps in order, and what the user should know about them."""

    steps: tuple[Step, ...]
    notes: tuple[str, ...] = field(default=())
