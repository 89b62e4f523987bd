"""Unpacked archives, one folder each, named by the archive's digest: whole or not there at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from servekit.system.archives.folder import tree_digest
from servekit.system.archives.names import HASHES, STAMP, BrokenError, Reader, shown
from servekit.system.archives.texts import shown_plain


def ready_copy(folder: Path) -> bool:
    """Whether ``folder`` is an unpacked copy as it was left; one that is not, is removed. Hold its lock."""
    if not folder.is_dir():
        return False
    if _intact(folder):
        return True
    shutil.rmtree(folder)
    return False


def extract(reader: Reader, folder: Path, sizes: Mapping[str, int], hashes: Mapping[str, str] | None) -> None:
    """All members into a folder beside, then renamed to ``folder``: an interruption leaves nothing that looks complete.

    BrokenError when the members are no longer those of ``sizes``, when a hash differs, or for a damaged archive.
    """
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    for stale in folder.parent.glob(f".{folder.name}.*.partial"):  # we hold the lock: nobody writes there
        shutil.rmtree(stale)
    try:
        temporary.mkdir()
        temporary.chmod(0o755)  # whatever the umask: a container's user reads here too
        stamp: dict[str, list[int]] = {}
        written: list[tuple[str, int, str]] = []
        for member, blocks in reader.stream():
            if member not in sizes or member in stamp:
                raise BrokenError(f"it changed after it was checked: {shown(member)} was not there.")
            target = temporary / member
            _make_parents(target.parent, temporary)
            sha256 = _write(blocks, target)
            if hashes is not None and member != HASHES and hashes.get(member) != sha256:
                raise BrokenError(f"{shown_plain(member)} is not what was packaged (its SHA-256 differs).")
            stamp[member] = _fingerprint(target)
            written.append((member, stamp[member][0], sha256))
        if any(sizes[name] != stamp.get(name, [None])[0] for name in sizes):
            raise BrokenError("it changed after it was checked: its members differ.")
        if reader.form == "no-archive" and tree_digest(written) != folder.name:
            raise BrokenError("it changed after it was checked: a file's contents differ.")
        (temporary / STAMP).write_text(json.dumps(stamp), encoding="utf-8")
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else unpacks into ``folder`` meanwhile."""
    with folder.with_name(f".{folder.name}.lock").open("a", encoding="ascii") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _write(blocks: Iterator[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as file:
        for block in blocks:
            digest.update(block)
            file.write(block)
    target.chmod(0o444)  # shared by deployments: nobody edits it in place
    return digest.hexdigest()


def _make_parents(folder: Path, root: Path) -> None:
    if folder != root and not folder.is_dir():
        _make_parents(folder.parent, root)
        folder.mkdir()
        folder.chmod(0o755)


def _fingerprint(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _intact(folder: Path) -> bool:
    """Whether an unpacked copy is as it was left, by size and time of each file."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        return all(_fingerprint(folder / member) == mark for member, mark in stamp.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False
