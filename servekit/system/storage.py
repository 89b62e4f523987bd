"""What a disk says, turned into a StorageError: full, over its quota, not writable."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path

from servekit.errors import StorageError

_MIB = 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


def free_bytes(folder: Path) -> int | None:
    """What we may still write there; None where the file system does not say."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    return blocks * status.f_frsize if status.f_blocks else None


def check_room(target: Path, needed: int) -> None:
    """StorageError before the first byte of gigabytes when ``needed`` bytes cannot fit beside ``target``."""
    free = free_bytes(target.parent)
    if free is not None and free < needed:
        raise _full(target, needed)


@contextlib.contextmanager
def explained(target: Path, needed: int) -> Iterator[None]:
    """Errors of the disk that ``target`` is on, said to a person. ``needed`` in bytes."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _full(target, needed) from error
        where = error.filename or target
        raise StorageError(
            f"{where} cannot be written: {error.strerror or error}.",
            hint="Check the folder's permissions, or name another one. Nothing half-written was left.",
        ) from error


@contextlib.contextmanager
def made(folder: Path) -> Iterator[None]:
    """``folder``, made where it is missing, with all above it; what was made goes again when the work fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with explained(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):  # somebody else put something there meanwhile
                path.rmdir()
        raise


def _full(target: Path, needed: int) -> StorageError:
    free = free_bytes(target.parent)
    left = "an unknown amount" if free is None else f"{free // _MIB} MiB"
    return StorageError(
        f"{target}: the disk is full ({math.ceil(needed / _MIB)} MiB needed, {left} free).",
        hint="Free some space, or choose a folder on another disk. Nothing half-written was left.",
    )
