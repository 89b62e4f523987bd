"""Files that members of an archive come from: opened safely, and watched for changes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servekit.errors import ModelError


@dataclass(frozen=True)
class Piece:
    """``size`` bytes of a file from ``offset``; ``stamp`` is what :func:`stamp` said when they were found."""

    path: Path
    offset: int
    size: int
    stamp: tuple[int, int] | None = None


Pieces = tuple["bytes | Piece", ...]
"""A member's content, in order: bytes from memory, and ranges of files that are copied when it is written."""


def stamp(path: Path) -> tuple[int, int]:
    """(bytes, time of modification in ns) of a file, by which a later change is noticed. OSError."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def stamp_of(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def changed(source: Path, how: str) -> ModelError:
    return ModelError(
        f"{source} changed while it was read: {how}.", hint="Package again when whatever writes it has finished."
    )


@contextlib.contextmanager
def opened(source: Path) -> Iterator[int]:
    try:
        # O_NONBLOCK: a pipe put in the file's place must not hang us; a regular file does not care.
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ModelError(f"{source} cannot be read: {error.strerror}.") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ModelError(f"{source} cannot be read: it is not a regular file.")
        yield descriptor
    finally:
        os.close(descriptor)
