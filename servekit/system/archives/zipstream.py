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
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from servekit.system.archives import zip_records
from servekit.system.archives.zip_records import Entry
from servekit.system.model_files.source_file import Piece, Pieces, changed, opened, stamp, stamp_of
from servekit.system.temporary_file import TemporaryFile

__all__ = ["CHUNK", "Piece", "Pieces", "Written", "ZipStream", "stamp"]

CHUNK = 8 * 1024 * 1024
# Chunks that may wait for their SHA-256. They are page cache, not memory of ours; few, so that a slow hash
# finds them still there when the file is larger than the memory.
_WAITING = 8


_SMALL = 256 * 1024  # bytes of a piece that is copied through memory


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
        with opened(source) as descriptor:
            size = os.fstat(descriptor).st_size
            start = self._position()
            self._begin(Entry(name.encode(), size, 0, start))
            sums = _Sums(self._hashing)
            copied = self._copy(descriptor, size + 1, sums)
        if copied != size:
            raise changed(source, f"{size} bytes, then {copied} or more")
        return self._end(name, size, start, sums)

    def add_pieces(self, name: str, pieces: Pieces) -> Written:
        """A member put together from memory and ranges of files, without a file of its own in between.

        ModelError when a file cannot be read, is shorter than a piece says, or changes meanwhile: its size and
        its time of modification are the same before and after.
        """
        size = sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in pieces)
        start = self._position()
        self._begin(Entry(name.encode(), size, 0, start))
        sums = _Sums(self._hashing)
        with contextlib.ExitStack() as stack:
            sources: dict[Path, tuple[int, tuple[int, int]]] = {}
            for piece in pieces:
                if isinstance(piece, bytes):
                    self._write(piece)
                    sums.add(memoryview(piece))
                    continue
                if piece.path not in sources:
                    source = stack.enter_context(opened(piece.path))
                    sources[piece.path] = source, stamp_of(source)
                descriptor, before = sources[piece.path]
                if piece.stamp not in (None, before):
                    raise changed(piece.path, "it is another than the one that was looked at")
                os.lseek(descriptor, piece.offset, os.SEEK_SET)
                copy = self._copy_small if piece.size < _SMALL else self._copy
                if copy(descriptor, piece.size, sums) != piece.size:
                    raise changed(piece.path, f"it ends before byte {piece.offset + piece.size}")
            for path, (descriptor, before) in sources.items():
                if stamp_of(descriptor) != before:
                    raise changed(path, "its size or its time of modification is another")
        return self._end(name, size, start, sums)

    def finish(self) -> int:
        """Central directory, fsync, rename. Returns the archive's size in bytes."""
        start = self._position()
        directory = b"".join(map(zip_records.central_header, self._entries))
        self._write(directory + zip_records.end_records(len(self._entries), start, len(directory)))
        size = self._position()
        self._temporary.commit()
        return size

    def _copy(self, source: int, most: int, sums: _Sums) -> int:
        """Append up to ``most`` bytes from where ``source`` stands; returns how many there were."""
        copied = 0
        chunk = memoryview(b"")
        try:
            while copied < most:
                start = self._position()
                # Chunks end where the archive's own pages, and larger units of them, do: the kernel copies faster.
                count = self._send(source, min(CHUNK - start % CHUNK, most - copied))
                if not count:
                    break
                _start_writeback(self._file, start, count)
                chunk = _mapped(self._file, start, count)
                sums.add(chunk)
                copied += count
        finally:
            # The traceback of an error keeps this frame, and a mapping the space of a file that is deleted.
            del chunk
        return copied

    def _copy_small(self, source: int, most: int, sums: _Sums) -> int:
        """The same through memory: below some size the kernel's way costs more calls than it saves."""
        copied = 0
        while copied < most and (data := os.read(source, most - copied)):
            self._write(data)
            sums.add(memoryview(data))
            copied += len(data)
        return copied

    def _end(self, name: str, size: int, start: int, sums: _Sums) -> Written:
        crc, sha256 = sums.finish()
        # The checksum stands before the data; it is known now.
        os.pwrite(self._file, crc.to_bytes(4, "little"), start + zip_records.CRC_OFFSET)
        self._entries[-1] = Entry(name.encode(), size, crc, start)
        return Written(name, size, sha256)

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


class _Sums:
    """CRC-32 in the caller's thread, SHA-256 in another, over the chunks of one member in their order."""

    def __init__(self, hashing: ThreadPoolExecutor) -> None:
        self._hashing = hashing
        self._crc = 0
        self._sha256 = hashlib.sha256()
        self._waiting: collections.deque[Future[None]] = collections.deque()

    def add(self, chunk: memoryview) -> None:
        self._waiting.append(self._hashing.submit(self._sha256.update, chunk))
        self._crc = zlib.crc32(chunk, self._crc)
        if len(self._waiting) > _WAITING:
            self._waiting.popleft().result()

    def finish(self) -> tuple[int, str]:
        """(CRC-32, SHA-256 in hex) of everything added."""
        while self._waiting:
            self._waiting.popleft().result()
        return self._crc, self._sha256.hexdigest()


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
