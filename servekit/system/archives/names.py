"""Which members an archive may hold, whichever way it is stored, and the limits of what a reader takes in.

A name that two programs could understand in two ways is refused rather than mended: what is checked here must
be what a worker finds.
"""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

MANIFEST = "MAR-INF/MANIFEST.json"
HASHES = "MAR-INF/servekit.json"
STAMP = ".servekit-stamp.json"
"""Where an unpacked copy keeps its files' sizes and times; no member may have that name."""

CHUNK = 1024 * 1024
MAX_MEMBERS = 100_000
_MAX_PART, _MAX_PATH, _MAX_DEPTH = 255, 2048, 64
# Weights shrink by a few per cent, a file of zeros a thousandfold. A small archive may shrink as far as it likes.
_MAX_RATIO, _SMALL = 200, 64 * 1024 * 1024


class BrokenError(Exception):
    """An archive can be read no further; the text says why, as a sentence after the archive's name."""


@dataclass
class Listing:
    """Every file of an archive: its name -> size in bytes, and what is wrong with the archive.

    ``complete`` is False when the reader could not go on to the end. ``texts`` are small members that it came
    across and kept, so that none has to be sought again.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    complete: bool = True
    texts: dict[str, bytes] = field(default_factory=dict)


class Reader(Protocol):
    """One archive, open. ``identity`` differs when the file was changed or replaced; () for a folder."""

    form: str
    identity: tuple[int, ...]

    def listing(self) -> Listing:
        """All members, without their contents. Damage is a problem of the listing, not an exception."""

    def stream(self, only: frozenset[str] | None = None) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Each file once, as (name, its blocks), in stored order; a file's blocks are to be read before the next.

        Only of an archive whose listing had no problems. BrokenError when the contents are not what it said.
        """

    def sha256(self, memory: Path | None) -> str:
        """The archive's digest, for a listing without problems; ``memory`` as for file_digest."""


class Names:
    """Collects the members of one archive with everything that is wrong with their names."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._files: dict[str, int] = {}
        self._folders: set[str] = set()
        self._count = 0

    def add(self, raw: bytes, size: int, *, folder: bool) -> str | None:
        """A member by its name as stored, ``size`` in bytes. Its clean name, None when that is refused."""
        self._count += 1
        if self._count > MAX_MEMBERS:
            raise BrokenError(f"it has more than {MAX_MEMBERS} members.")
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.problems.append(f"the member {shown(raw)} has a name that is not UTF-8.")
            return None
        if folder:
            name = name.removesuffix("/")
        if problem := name_problem(name):
            self.problems.append(f"the member {shown(name)} {problem}.")
            return None
        if name in self._files or name in self._folders:
            both = (name in self._folders) != folder
            self.problems.append(
                f"the member {shown(name)} is {'both a file and a folder' if both else 'there twice'}."
            )
            return None
        if folder:
            self._folders.add(name)
        else:
            self._files[name] = size
        return name

    def finish(self) -> Listing:
        """All files, with the problems that only show once all are known."""
        above = {str(parent) for name in (*self._files, *self._folders) for parent in PurePosixPath(name).parents}
        clashes = sorted(above & self._files.keys())
        self.problems += [f"the member {shown(name)} is both a file and a folder." for name in clashes]
        return Listing(self._files, self.problems)


def name_problem(name: str) -> str | None:
    """Why no member may have this name, as the end of a sentence; None for a good one. No slash at the end."""
    parts = name.split("/")
    if not name or name.startswith("/") or ".." in parts or "\\" in name or name[1:2] == ":":
        return "would land outside the archive's folder"
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        return "has a control character in its name"
    if "" in parts or "." in parts:
        return "has an empty or '.' part in its name"
    if any(len(part.encode()) > _MAX_PART for part in parts):
        return f"has a part of more than {_MAX_PART} bytes in its name"
    if len(name.encode()) > _MAX_PATH or len(parts) > _MAX_DEPTH:
        return f"has a name of more than {_MAX_PATH} bytes or {_MAX_DEPTH} folders"
    if name == STAMP:
        return "has a name that servekit keeps for itself"
    return None


def pread(descriptor: int, count: int, offset: int) -> bytes:
    """At most ``count`` bytes at ``offset``; fewer only at the end. BrokenError when the disk cannot give them."""
    data = bytearray()
    try:
        while len(data) < count and (block := os.pread(descriptor, count - len(data), offset + len(data))):
            data += block
    except (OSError, OverflowError) as error:
        raise BrokenError(f"it cannot be read: {error}.") from error
    return bytes(data)


def identity(status: os.stat_result) -> tuple[int, ...]:
    """What no longer is the same once a file was written to or replaced; no program can set the time of change."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def is_bomb(size: int, packed: int) -> bool:
    """Whether ``size`` bytes out of ``packed`` compressed ones is more than a model ever gives."""
    return size > _SMALL and size > _MAX_RATIO * packed


def shown(name: str | bytes) -> str:
    """A name from an archive as it may stand in a message: on one line, escaped, not too long."""
    if isinstance(name, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            name = name.decode("utf-8")
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}..."
