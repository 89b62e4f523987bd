"""Our own zip writer: stored, streaming, deterministic, atomic; hashes while it copies.

Weights do not compress, so deflating them costs a minute a gigabyte at every build and load. Stored, the
cost is one copy. The kernel makes it (no byte passes through a buffer of ours); the sums are taken from the
pages just written, SHA-256 in a thread of its own and CRC-32 beside the copying. Two busy threads, not
three: SHA-256 is the slowest of the three jobs, and on two cores a third thread would hold it up.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import stat
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from servekit.errors import ModelError
from servekit.system import zip_records
from servekit.system.temporary_file import TemporaryFile
from servekit.system.zip_records import Entry

CHUNK = 8 * 1024 * 1024
# Chunks that may wait for their SHA-256. They are page cache, not memory of ours; few, so that a slow hash
# finds them still there when the file is larger than the memory.
_WAITING = 8


@dataclass(frozen=True)
class Written:
    """One member as it was written."""

    name: str
    size: int
    sha256: str


class ZipStream:
    """Write members one after another; ``finish`` makes the file appear at ``target``, whole.

    Use as a context manager: leaving it without ``finish`` removes the temporary file. OSError is the
    target's (full, not writable); what is wrong with a source is a ModelError.
    """

    def __init__(self, target: Path) -> None:
        self._temporary = TemporaryFile(target)
        self._file = self._temporary.descriptor
        self._entries: list[Entry] = []
        self._hashing = ThreadPoolExecutor(1, "sha256")

    def __enter__(self) -> ZipStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._hashing.shutdown(wait=True, cancel_futures=True)
        self._temporary.discard()

    def add_bytes(self, name: str, data: bytes) -> Written:
        """A small member from memory."""
        self._begin(Entry(name.encode(), len(data), zlib.crc32(data), self._position()))
        self._write(data)
        return Written(name, len(data), hashlib.sha256(data).hexdigest())

    def add_file(self, name: str, source: Path) -> Written:
        """A member streamed from ``source``. ModelError when it cannot be read or changes size meanwhile."""
        with _opened(source) as descriptor:
            size = os.fstat(descriptor).st_size
            start = self._position()
            self._begin(Entry(name.encode(), size, 0, start))
            crc, sha256, copied = self._copy(descriptor, size)
        if copied != size:
            raise ModelError(
                f"{source} changed while it was read: {size} bytes, then {copied} or more.",
                hint="Package again when whatever writes it has finished.",
            )
        # The checksum stands before the data; it is known now.
        os.pwrite(self._file, crc.to_bytes(4, "little"), start + zip_records.CRC_OFFSET)
        self._entries[-1] = Entry(name.encode(), size, crc, start)
        return Written(name, size, sha256)

    def finish(self) -> int:
        """Central directory, fsync, rename. Returns the archive's size in bytes."""
        start = self._position()
        directory = b"".join(map(zip_records.central_header, self._entries))
        self._write(directory + zip_records.end_records(len(self._entries), start, len(directory)))
        size = self._position()
        self._temporary.commit()
        return size

    def _copy(self, source: int, size: int) -> tuple[int, str, int]:
        """Append what is left of ``source``; (crc, sha256, bytes). Stops once it is longer than ``size``."""
        crc, copied, sha256 = 0, 0, hashlib.sha256()
        waiting: collections.deque[Future[None]] = collections.deque()
        chunk = memoryview(b"")
        try:
            while copied <= size:
                start = self._position()
                # Chunks end where the archive's own pages, and larger units of them, do: the kernel copies faster.
                count = self._send(source, CHUNK - start % CHUNK)
                if not count:
                    break
                _start_writeback(self._file, start, count)
                chunk = _mapped(self._file, start, count)
                waiting.append(self._hashing.submit(sha256.update, chunk))
                crc = zlib.crc32(chunk, crc)
                copied += count
                if len(waiting) > _WAITING:
                    waiting.popleft().result()
            for future in waiting:
                future.result()
        finally:
            # The traceback of an error keeps this frame, and a mapping the space of a file that is deleted.
            del chunk
        return crc, sha256.hexdigest(), copied

    def _send(self, source: int, most: int) -> int:
        """Append up to ``most`` bytes; 0 at the end of ``source``."""
        try:
            return os.sendfile(self._file, source, None, most)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        # A file system that cannot splice: the same through memory.
        data = os.read(source, most)
        self._write(data)
        return len(data)

    def _begin(self, entry: Entry) -> None:
        self._write(zip_records.local_header(entry))
        self._entries.append(entry)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def _position(self) -> int:
        return os.lseek(self._file, 0, os.SEEK_CUR)


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[int]:
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


def _mapped(file: int, start: int, count: int) -> memoryview:
    """Bytes of ``file`` in place, unmapped when the last user lets go of them.

    Only for our own temporary file, which nobody shortens: reading beyond the end would be a SIGBUS.
    """
    skipped = start % mmap.ALLOCATIONGRANULARITY
    # Private, since some file systems have no shared mappings; populated, which spares a fault a page.
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)
    return memoryview(mmap.mmap(file, skipped + count, flags, mmap.PROT_READ, offset=start - skipped))[skipped:]


def _start_writeback(file: int, start: int, count: int) -> None:
    """Ask the kernel to begin writing a range, so that the fsync at the end finds little left to do.

    A hint: where it cannot be taken, only time is lost.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).sync_file_range(ctypes.c_int(file), ctypes.c_int64(start), ctypes.c_int64(count), 2)
