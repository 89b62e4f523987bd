"""Our own zip writer: stored, streaming, deterministic, atomic; hashes while it copies.

Weights do not compress, so deflating them costs a minute a gigabyte at every build and load. Stored, the
cost is one copy; CRC-32 and SHA-256 are computed beside it in two threads (both release the GIL), so that
writing stays bound by the disk. Format: PKWARE APPNOTE 6.3.10, with zip64 records where sizes need them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK = 1024 * 1024
_LIMIT32 = 0xFFFFFFFF
_LIMIT16 = 0xFFFF
_DATE, _TIME = (1 << 5) | 1, 0  # 1980-01-01 00:00: the same archive on any day
_UTF8 = 0x800
_MODE = (stat.S_IFREG | 0o644) << 16
# A started writeback keeps dirty pages few, so that the fsync at the end finds little left to do.
_WRITEBACK = 32 * 1024 * 1024
# What copy_file_range says where it cannot: other file systems, old kernels, files in /proc.
_NOT_BY_KERNEL = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


@dataclass(frozen=True)
class Written:
    """One member as it was written."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class _Entry:
    name: bytes
    crc: int
    size: int
    offset: int


class ZipStream:
    """Write members one after another; ``finish`` makes the file appear at ``target``, whole.

    Use as a context manager: leaving it without ``finish`` removes the temporary file.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._clear_stale()
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
        self._entries: list[_Entry] = []
        self._flushed = 0
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="hash")
        self._file: BinaryIO = self._temporary.open("xb", buffering=0)

    def __enter__(self) -> ZipStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()

    def add_bytes(self, name: str, data: bytes) -> Written:
        """A small member from memory."""
        self._header(name, len(data), zlib.crc32(data))
        self._write(memoryview(data))
        return Written(name, len(data), hashlib.sha256(data).hexdigest())

    def add_file(self, name: str, source: Path) -> Written:
        """A member streamed from ``source``. OSError when it changes size while it is read."""
        with source.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            size = before.st_size
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            start = self._file.tell()
            self._header(name, size, 0)
            crc, sha256, copied = self._copy(file.fileno(), size)
            after = os.fstat(file.fileno())
        # The hashes and the copy are read apart: they are of one file only if nobody wrote to it meanwhile.
        if copied != size or (after.st_size, after.st_mtime_ns) != (size, before.st_mtime_ns):
            raise OSError(errno.EBUSY, f"changed while it was read ({size} bytes, then {after.st_size})", str(source))
        # The checksum stands before the data; it is known now.
        os.pwrite(self._file.fileno(), struct.pack("<L", crc), start + 14)
        self._entries[-1] = _Entry(self._entries[-1].name, crc, size, start)
        return Written(name, size, sha256)

    def finish(self) -> int:
        """Central directory, fsync, rename. Returns the archive's size in bytes."""
        self._directory()
        size = self._file.tell()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.chmod(0o644)
        self._temporary.replace(self._target)
        folder = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return size

    def _copy(self, source: int, size: int) -> tuple[int, str, int]:
        """Copy a descriptor's first ``size`` bytes to the end of the archive; (crc, sha256, bytes copied).

        The kernel copies from cache to cache; beside it each hash reads the cached pages for itself, in
        pieces that fit a core's own cache.
        """
        hashing = self._pool.submit(_sha256, source, size)
        summing = self._pool.submit(_crc32, source, size)
        copied = 0
        while copied < size and (count := self._copy_some(source, copied, min(_WRITEBACK, size - copied))):
            copied += count
        return summing.result(), hashing.result(), copied

    def _copy_some(self, source: int, offset: int, count: int) -> int:
        """Up to ``count`` bytes; 0 at the end of the source."""
        try:
            done = os.copy_file_range(source, self._file.fileno(), count, offset)
        except OSError as error:
            if error.errno not in _NOT_BY_KERNEL:
                raise
            block = os.pread(source, min(count, CHUNK), offset)
            self._write(block)
            return len(block)
        self._begin_writeback()
        return done

    def _write(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._begin_writeback()

    def _begin_writeback(self) -> None:
        position = self._file.tell()
        if position - self._flushed >= _WRITEBACK:
            _start_writeback(self._file.fileno(), self._flushed, position - self._flushed)
            self._flushed = position

    def _header(self, name: str, size: int, crc: int) -> None:
        encoded = name.encode("utf-8")
        offset = self._file.tell()
        big = size >= _LIMIT32
        extra = struct.pack("<HHQQ", 1, 16, size, size) if big else b""
        shown = _LIMIT32 if big else size
        version = 45 if big else 20
        self._write(
            struct.pack(
                "<LHHHHHLLLHH",
                0x04034B50,
                version,
                _flags(encoded),
                0,
                _TIME,
                _DATE,
                crc,
                shown,
                shown,
                len(encoded),
                len(extra),
            )
            + encoded
            + extra
        )
        self._entries.append(_Entry(encoded, crc, size, offset))

    def _directory(self) -> None:
        start = self._file.tell()
        for entry in self._entries:
            fields = [value for value in (entry.size, entry.size, entry.offset) if value >= _LIMIT32]
            extra = struct.pack(f"<HH{len(fields)}Q", 1, 8 * len(fields), *fields) if fields else b""
            size = min(entry.size, _LIMIT32)
            version = 45 if fields else 20
            self._write(
                struct.pack(
                    "<LHHHHHHLLLHHHHHLL",
                    0x02014B50,
                    (3 << 8) | version,  # made by Unix, so that the mode below means something
                    version,
                    _flags(entry.name),
                    0,
                    _TIME,
                    _DATE,
                    entry.crc,
                    size,
                    size,
                    len(entry.name),
                    len(extra),
                    0,
                    0,
                    0,
                    _MODE,
                    min(entry.offset, _LIMIT32),
                )
                + entry.name
                + extra
            )
        length, count = self._file.tell() - start, len(self._entries)
        if count >= _LIMIT16 or start >= _LIMIT32 or length >= _LIMIT32:
            end = self._file.tell()
            self._write(struct.pack("<LQHHLLQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, length, start))
            self._write(struct.pack("<LLQL", 0x07064B50, 0, end, 1))
        self._write(
            struct.pack(
                "<LHHHHLLH",
                0x06054B50,
                0,
                0,
                min(count, _LIMIT16),
                min(count, _LIMIT16),
                min(length, _LIMIT32),
                min(start, _LIMIT32),
                0,
            )
        )

    def _clear_stale(self) -> None:
        """Temporary files of this target whose writer was killed."""
        for path in self._target.parent.glob(f".{self._target.name}.*.partial"):
            pid = path.name.removeprefix(f".{self._target.name}.").partition("-")[0]
            if not (pid.isdigit() and Path("/proc", pid).exists()):
                path.unlink(missing_ok=True)


def _parts(descriptor: int, size: int) -> Iterator[memoryview]:
    """The first ``size`` bytes of a file in pieces, each valid until the next is asked for."""
    buffer = memoryview(bytearray(CHUNK))
    offset = 0
    while offset < size and (count := os.preadv(descriptor, [buffer[: size - offset]], offset)):
        yield buffer[:count]
        offset += count


def _sha256(descriptor: int, size: int) -> str:
    digest = hashlib.sha256()
    for part in _parts(descriptor, size):
        digest.update(part)
    return digest.hexdigest()


def _crc32(descriptor: int, size: int) -> int:
    crc = 0
    for part in _parts(descriptor, size):
        crc = zlib.crc32(part, crc)
    return crc


def _flags(name: bytes) -> int:
    return 0 if name.isascii() else _UTF8


def _start_writeback(descriptor: int, offset: int, length: int) -> None:
    """Ask the kernel to begin writing a range; a hint, and only where libc has it."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).sync_file_range(
            ctypes.c_int(descriptor), ctypes.c_int64(offset), ctypes.c_int64(length), ctypes.c_uint(2)
        )
