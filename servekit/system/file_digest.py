"""The SHA-256 of a file, remembered between runs so that ``up`` does not read gigabytes again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path

_CHUNK = 1024 * 1024
# A file changed twice within the clock's grain looks the same afterwards: what is so young is not remembered.
_SETTLED_NS = 1_000_000_000
_HEX = re.compile(r"[0-9a-f]{64}")


def sha256(path: Path, memory: Path | None = None) -> str:
    """Of the file's bytes. OSError when it cannot be read.

    ``memory`` is a folder of earlier answers; it is never made here (a dry run writes nothing), and an answer
    holds for one inode with one size, time of change and time of modification. No program can set the time
    of change, so that a file put back with its old dates is read again.
    """
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        note = memory / _key(status) if memory else None
        if note and (known := _recall(note)):
            return known
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
        changed = _key(os.fstat(file.fileno())) != _key(status)
    answer = digest.hexdigest()
    settled = time.time_ns() - status.st_ctime_ns > _SETTLED_NS
    if note and settled and not changed and note.parent.is_dir():
        with contextlib.suppress(OSError):  # it will be read again next time, that is all
            _remember(note, answer)
    return answer


def _key(status: os.stat_result) -> str:
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ".digest-" + "-".join(f"{number:x}" for number in numbers)


def _recall(note: Path) -> str | None:
    try:
        text = note.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return text if _HEX.fullmatch(text) else None


def _remember(note: Path, answer: str) -> None:
    temporary = note.with_name(f"{note.name}.{os.getpid()}")
    temporary.write_text(answer, encoding="ascii")
    temporary.replace(note)
