"""A model archive as a folder (torch-model-archiver's ``no-archive``): every file in it is a member.

Its digest is the SHA-256 of one line a file, ``SHA-256 SIZE NAME``, sorted by name: no file may be added,
removed, renamed or changed without changing it. Empty folders, modes and times do not count.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from servekit.system import file_digest
from servekit.system.archives.names import CHUNK, BrokenError, Listing, Names, name_problem, shown

# A digest is remembered in a file of its own: not worth it for what is read in no time.
_WORTH_REMEMBERING = 1024 * 1024


class FolderReader:
    """Reads the files below ``path``; see archive_names.Reader."""

    form = "no-archive"
    identity: tuple[int, ...] = ()

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # the archive may be named by a link; nothing in it may be one
        self._sizes: dict[str, int] = {}

    def listing(self) -> Listing:
        names = Names()
        broken = []
        try:
            for name, status, _ in self._walk():
                if stat.S_ISREG(status.st_mode):
                    names.add(os.fsencode(name), status.st_size, folder=False)
                elif stat.S_ISDIR(status.st_mode):
                    names.add(os.fsencode(name), 0, folder=True)
                else:
                    names.problems.append(f"the member {shown(name)} is a link or a special file.")
        except BrokenError as error:
            broken.append(str(error))
        listing = names.finish()
        listing.problems += broken
        listing.complete = not broken
        self._sizes = listing.sizes
        return listing

    def stream(self, only: frozenset[str] | None = None) -> Iterator[tuple[str, Iterator[bytes]]]:
        for name, status, folder in self._walk():
            if not stat.S_ISDIR(status.st_mode) and (only is None or name in only):
                yield name, self._blocks(name, folder)

    def sha256(self, memory: Path | None) -> str:
        return tree_digest(
            (name, size, file_digest.sha256(self._path / name, memory if size >= _WORTH_REMEMBERING else None))
            for name, size in self._sizes.items()
        )

    def _walk(self) -> Iterator[tuple[str, os.stat_result, int]]:
        """(name, status, descriptor of its folder) of all below; no link is followed, not even one put there now."""
        for above, folders, files, descriptor in os.fwalk(self._path, onerror=_raise):
            prefix = os.path.relpath(above, self._path) + "/" if above != os.fspath(self._path) else ""
            for short in sorted(folders + files):
                try:
                    status = os.stat(short, dir_fd=descriptor, follow_symlinks=False)
                except OSError as error:
                    raise BrokenError(f"{shown(prefix + short)} cannot be read: {error.strerror}.") from error
                yield prefix + short, status, descriptor
            # What is refused by its name is not entered: it may be nested without end.
            folders[:] = sorted(short for short in folders if not name_problem(prefix + short))

    def _blocks(self, name: str, folder: int) -> Iterator[bytes]:
        changed = f"it changed while it was read: {shown(name)} is not what it was."
        try:
            # O_NONBLOCK: a pipe that was put in its place must not hold us up.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name.rpartition("/")[2], flags, dir_fd=folder)
        except OSError as error:
            raise BrokenError(f"{shown(name)} cannot be read: {error.strerror}.") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise BrokenError(changed)
            left = status.st_size
            while block := _read(descriptor, name):
                left -= len(block)
                if left < 0:
                    raise BrokenError(changed)
                yield block
            if left:
                raise BrokenError(changed)
        finally:
            os.close(descriptor)


def tree_digest(files: Iterable[tuple[str, int, str]]) -> str:
    """The digest of a folder whose files have these (name, size in bytes, SHA-256)."""
    lines = sorted((name.encode(), f"{sha256} {size} ".encode()) for name, size, sha256 in files)
    return hashlib.sha256(b"".join(what + name + b"\n" for name, what in lines)).hexdigest()


def _read(descriptor: int, name: str) -> bytes:
    try:
        return os.read(descriptor, CHUNK)
    except OSError as error:
        raise BrokenError(f"{shown(name)} cannot be read: {error.strerror}.") from error


def _raise(error: OSError) -> None:
    raise BrokenError(f"{shown(str(error.filename))} cannot be read: {error.strerror}.") from error
