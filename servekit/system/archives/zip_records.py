"""The records of a stored zip as bytes: APPNOTE 6.3.9, with zip64 wherever a number no longer fits.

Everything that could differ from one day or machine to the next is a constant: dates, modes, versions.
Sizes stand in each member's own header, before its data: Java's ZipInputStream, which TorchServe unpacks
with, does not take a stored member whose sizes follow it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_DATE_1980 = 0x0021  # 1 January 1980, the first day a zip can tell
_MADE_BY_UNIX_45 = 3 << 8 | 45
_REGULAR_0644 = 0o100644 << 16
_UTF8 = 0x0800
_LOCAL_SIZE = 30
_ALIGNMENT, _PAGE, _LARGE = 0xD935, 4096, 1024 * 1024
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF

CRC_OFFSET = 14
"""Where the CRC-32 stands in a local header, to be filled in once the data has passed by."""


@dataclass(frozen=True)
class Entry:
    """A member: name as encoded, size in bytes, CRC-32, and the offset of its local header."""

    name: bytes
    size: int
    crc: int
    offset: int

    @property
    def flags(self) -> int:
        return 0 if self.name.isascii() else _UTF8

    @property
    def version_needed(self) -> int:
        return 45 if self.size >= _MAX32 or self.offset >= _MAX32 else 20


def local_header(entry: Entry) -> bytes:
    """What stands before a member's data. A local header knows no offset, so only the size can need zip64.

    Large members are moved to a page boundary by an extra field that readers skip (the one of Android's
    zipalign): page-aligned copying is faster, and whoever wants can map the data where it lies.
    """
    extra, size = b"", entry.size
    if entry.size >= _MAX32:
        extra, size = struct.pack("<HHQQ", 1, 16, entry.size, entry.size), _MAX32
    version = 45 if extra else 20
    if entry.size >= _LARGE:
        extra += _padding(entry.offset + _LOCAL_SIZE + len(entry.name) + len(extra))
    head = struct.pack(
        "<4sHHHHHIIIHH",
        b"PK\x03\x04",
        version,
        entry.flags,
        0,
        0,
        _DATE_1980,
        entry.crc,
        size,
        size,
        len(entry.name),
        len(extra),
    )
    return head + entry.name + extra


def _padding(position: int) -> bytes:
    """The extra field after which a field that starts at ``position`` ends on a page boundary."""
    zeros = -(position + 6) % _PAGE
    return struct.pack("<HHH", _ALIGNMENT, 2 + zeros, _PAGE) + bytes(zeros)


def central_header(entry: Entry) -> bytes:
    """The member's line in the directory at the end."""
    wide = struct.pack("<QQ", entry.size, entry.size) if entry.size >= _MAX32 else b""
    size = _MAX32 if wide else entry.size
    far = struct.pack("<Q", entry.offset) if entry.offset >= _MAX32 else b""
    offset = _MAX32 if far else entry.offset
    extra = struct.pack("<HH", 1, len(wide + far)) + wide + far if wide or far else b""
    head = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        b"PK\x01\x02",
        _MADE_BY_UNIX_45,
        entry.version_needed,
        entry.flags,
        0,
        0,
        _DATE_1980,
        entry.crc,
        size,
        size,
        len(entry.name),
        len(extra),
        0,
        0,
        0,
        _REGULAR_0644,
        offset,
    )
    return head + entry.name + extra


def end_records(count: int, start: int, length: int) -> bytes:
    """What closes the file, for ``count`` members whose directory is ``length`` bytes from ``start``."""
    wide = b""
    if count >= _MAX16 or start >= _MAX32 or length >= _MAX32:
        wide = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, _MADE_BY_UNIX_45, 45, 0, 0, count, count, length, start)
        wide += struct.pack("<4sIQI", b"PK\x06\x07", 0, start + length, 1)
    number, length, start = min(count, _MAX16), min(length, _MAX32), min(start, _MAX32)
    return wide + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, number, number, length, start, 0)
