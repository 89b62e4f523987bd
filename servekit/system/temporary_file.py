"""A file that appears whole or not at all: written beside its target, synced, then renamed over it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

_SUFFIX = ".partial"


class TemporaryFile:
    """Becomes ``target`` with ``commit``; goes without a trace with ``discard``.

    It is locked while its writer lives. A writer that was killed outright leaves a file that nobody locks,
    and the next one for the same target removes it; no process id is trusted for that, since containers
    that share a folder each count their own. OSError is what the file system says.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        _remove_abandoned(target)
        self._path, self.descriptor = _create_locked(target)
        self._open = True

    def commit(self) -> None:
        """fsync, rename, and fsync of the folder, so that the new name survives a power cut too."""
        os.fsync(self.descriptor)
        os.fchmod(self.descriptor, 0o644)  # also under umask 077: a container's user reads it
        self._path.replace(self._target)
        folder = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Remove the file unless it was committed, and close it. May be called twice."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self.descriptor)


def _prefix(target: Path) -> str:
    return f".{target.name}."


def _create_locked(target: Path) -> tuple[Path, int]:
    while True:
        path = target.with_name(f"{_prefix(target)}{secrets.token_hex(6)}{_SUFFIX}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return path, descriptor
        except (BlockingIOError, FileNotFoundError):
            pass  # between the two calls another writer took it for abandoned: try again
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_abandoned(target: Path) -> None:
    prefix = _prefix(target)
    with os.scandir(target.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(prefix) and entry.name.endswith(_SUFFIX)]
    for name in names:
        with contextlib.suppress(OSError):
            descriptor = os.open(target.with_name(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                target.with_name(name).unlink()
            finally:
                os.close(descriptor)
