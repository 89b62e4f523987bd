"""The directory of a zip, compared with the headers that stand before its members (APPNOTE 6.3.9).

A zip says everything twice. Python goes by the directory at the end; Java's ZipInputStream, which TorchServe
unpacks with, never looks at it and reads from the first byte on, member after member. So both must say the
same, and the members must follow each other without a gap: otherwise one archive holds two contents.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from servekit.system.archives.names import MAX_MEMBERS, BrokenError, pread, shown

STORED, DEFLATED = 0, 8
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x0001, 0x0008, 0x0800
_OTHERWISE_ENCRYPTED = 0x2060  # strong encryption, masked headers, patch data
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
_NEWEST = 63  # the last version of the format; Python's reader stops at it too
_MAX_DIRECTORY = 64 * 1024 * 1024
# Deflate cannot shrink more than 1032-fold, and a few bytes more for its own header.
_DEFLATE_RATIO = 1032


@dataclass(frozen=True)
class Entry:
    """A member: ``packed`` and ``size`` in bytes, ``offset`` of its header, ``start`` of its data, Unix mode."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    mode: int
    start: int = 0

    @property
    def folder(self) -> bool:
        return self.name.endswith(b"/")

    @property
    def encrypted(self) -> bool:
        return bool(self.flags & (_ENCRYPTED | _OTHERWISE_ENCRYPTED))


def read_directory(descriptor: int, length: int) -> tuple[list[Entry], list[str]]:
    """Every member in the order of its data, and every problem. BrokenError when there is no directory."""
    count, offset, size, end = _find_end(descriptor, length)
    if count > MAX_MEMBERS:
        raise BrokenError(f"it has more than {MAX_MEMBERS} members.")
    if size > _MAX_DIRECTORY:
        raise BrokenError(f"its directory is larger than {_MAX_DIRECTORY >> 20} MiB.")
    if offset + size != end:
        what = "are missing from" if offset + size > end else "stand before or inside"
        raise BrokenError(f"{abs(end - offset - size)} bytes {what} the archive: it is more or less than a zip.")
    entries = _central(read_exactly(descriptor, size, offset), count)
    entries.sort(key=lambda entry: entry.offset)
    problems: list[str] = []
    placed: list[Entry] = []
    expected = 0
    for position, entry in enumerate(entries):
        following = entries[position + 1].offset if position + 1 < len(entries) else offset
        if entry.offset != expected:
            problems.append(_misplaced(entry, expected))
            break  # all that follows would be reported for the same reason
        start, wide, found = _local(descriptor, entry)
        problems += found
        entry = replace(entry, start=start)
        placed.append(entry)
        expected = start + entry.packed
        if entry.flags & _SIZES_FOLLOW and following > expected:
            trailer = read_exactly(descriptor, min(following - expected, 24), expected)
            if trailer not in _descriptors(entry, wide):
                problems.append(f"the member {shown(entry.name)} is followed by other sizes than the directory's.")
            expected = following
    else:
        if expected != offset:
            what = f"{offset - expected} bytes stand between its members and its directory"
            problems.append(f"{what}." if offset > expected else "its last member reaches into its directory.")
    return placed + entries[len(placed) :], problems


def member_problems(entry: Entry) -> list[str]:
    """What is wrong with one member's own line, as ends of a sentence."""
    problems = []
    kind = entry.mode & 0o170000
    if kind not in (0, 0o100000, 0o040000):
        problems.append("is a link or a special file")
    elif kind == 0o040000 and not entry.folder:
        problems.append("is a folder by its mode and a file by its name")
    if entry.folder and entry.size:
        problems.append("is a folder with contents")
    if entry.encrypted:
        problems.append("is encrypted")
    if entry.method not in (STORED, DEFLATED):
        problems.append(f"is compressed by method {entry.method}; only stored and deflated ones can be served")
    if entry.method == STORED and entry.flags & _SIZES_FOLLOW:
        problems.append("is stored with its sizes behind it, which TorchServe cannot read")
    if entry.method == STORED and entry.size != entry.packed and not entry.encrypted:
        problems.append(f"is stored, yet has {entry.size} bytes out of {entry.packed}")
    if entry.method != STORED and entry.size > _DEFLATE_RATIO * (entry.packed + 8):
        problems.append(f"expands {entry.size} bytes out of almost none")
    return problems


def read_exactly(descriptor: int, count: int, offset: int) -> bytes:
    """``count`` bytes at ``offset``; BrokenError when the file ends before."""
    data = pread(descriptor, count, offset)
    if len(data) != count:
        raise BrokenError("it is truncated or damaged: it names bytes beyond its end.")
    return data


def _find_end(descriptor: int, length: int) -> tuple[int, int, int, int]:
    """(members, offset and size of the directory, where the closing records begin)."""
    reach = min(length, 22 + _MAX16)
    tail = read_exactly(descriptor, reach, length - reach)
    found = tail.rfind(_END, 0, max(reach - 22 + 4, 0))
    if found < 0:
        start = read_exactly(descriptor, min(length, 2), 0)
        if start == b"PK":
            raise BrokenError("it is truncated: its end is missing.")
        raise BrokenError("it is not an archive: it is no zip, no tar.gz and no folder." if start else "it is empty.")
    disk, first, here, count, size, offset, comment = struct.unpack_from("<4H2IH", tail, found + 4)
    if found + 22 + comment != reach:
        raise BrokenError("it is truncated, or bytes follow its end.")
    end = length - reach + found
    narrow = (count, size, offset)
    if end >= 20 and (locator := read_exactly(descriptor, 20, end - 20)).startswith(_LOCATOR64):
        _, at, disks = struct.unpack("<IQI", locator[4:])
        if at > end - 20 - 56 or disks > 1:
            raise BrokenError("its zip64 records contradict each other.")
        record = read_exactly(descriptor, 56, at)
        own, disk, first, here, count, size, offset = struct.unpack_from("<Q4x2I4Q", record, 4)
        limits = (_MAX16, _MAX32, _MAX32)
        agree = all(old in (new, limit) for old, new, limit in zip(narrow, (count, size, offset), limits, strict=True))
        if not record.startswith(_END64) or at + 12 + own != end - 20 or not agree:
            raise BrokenError("its zip64 records contradict each other.")
        end = at
    if disk or first or here != count:
        raise BrokenError("it is one part of a zip in several parts.")
    return count, offset, size, end


def _central(data: bytes, count: int) -> list[Entry]:
    entries: list[Entry] = []
    position = 0
    while position < len(data):
        if data[position : position + 4] != b"PK\x01\x02" or len(data) - position < 46:
            raise BrokenError("its directory is damaged.")
        version, flags, method, crc, packed, size, name_size, extra_size, comment_size, disk, attributes, offset = (
            struct.unpack_from("<6xHHH4xIIIHHHH2xII", data, position)
        )
        body = data[position + 46 : position + 46 + name_size + extra_size]
        position += 46 + name_size + extra_size + comment_size
        if position > len(data) or (disk and disk != _MAX16):
            raise BrokenError("its directory is damaged.")
        name = body[:name_size]
        if version > _NEWEST:
            raise BrokenError(f"the member {shown(name)} needs a reader of version {version / 10}.")
        extra = _fields(body[name_size:], name)
        size, packed, offset = _widened(extra.get(_ZIP64, b""), (size, packed, offset), name)
        entries.append(Entry(name, flags, method, crc, packed, size, offset, attributes >> 16))
    if len(entries) != count:
        raise BrokenError(f"its directory has {len(entries)} members and says {count}.")
    return entries


def _local(descriptor: int, entry: Entry) -> tuple[int, bool, list[str]]:
    """Where the data starts, whether the header has zip64 sizes, and how it differs from the directory."""
    who = f"the member {shown(entry.name)}"
    head = read_exactly(descriptor, 30, entry.offset)
    if not head.startswith(b"PK\x03\x04"):
        raise BrokenError(f"{who} has no header where the directory says.")
    flags, method, crc, packed, size, name_size, extra_size = struct.unpack_from("<6xHH4xIIIHH", head)
    body = read_exactly(descriptor, name_size + extra_size, entry.offset + 30)
    start, name = entry.offset + 30 + len(body), body[:name_size]
    extra = _fields(body[name_size:], name)
    if name != entry.name:
        return start, False, [f"{who} is called {shown(name)} in its own header."]
    size, packed = _widened(extra.get(_ZIP64, b""), (size, packed), name)
    mask = _ENCRYPTED | _OTHERWISE_ENCRYPTED | _SIZES_FOLLOW | _UTF8
    pairs = [("flags", flags & mask, entry.flags & mask), ("method", method, entry.method)]
    sizes = [("checksum", crc, entry.crc), ("compressed size", packed, entry.packed), ("size", size, entry.size)]
    if flags & entry.flags & _SIZES_FOLLOW:  # then zeros may stand for what was not known yet
        sizes = [(what, there, here) for what, there, here in sizes if there not in (0, _MAX32)]
    differ = [what for what, there, here in pairs + sizes if there != here]
    problems = [f"{who} has another {' and '.join(differ)} in its own header than in the directory."] if differ else []
    return start, _ZIP64 in extra, problems


def _fields(data: bytes, name: bytes) -> dict[int, bytes]:
    """The extra fields by their number."""
    fields: dict[int, bytes] = {}
    position = 0
    while position < len(data):
        number, size = struct.unpack_from("<HH", data, position) if len(data) - position >= 4 else (0, len(data))
        value = data[position + 4 : position + 4 + size]
        if len(value) != size or (number == _ZIP64 and number in fields):
            raise BrokenError(f"the member {shown(name)} has damaged extra fields.")
        if number == _UNICODE_PATH and value[5:] != name:
            raise BrokenError(f"the member {shown(name)} has a second name, {shown(value[5:])}.")
        fields[number] = value
        position += 4 + size
    return fields


def _widened(field: bytes, numbers: tuple[int, ...], name: bytes) -> tuple[int, ...]:
    """Numbers that did not fit stand in the zip64 field, in this order. Without the field they are as they are."""
    if not field:
        return numbers
    wanted = sum(number == _MAX32 for number in numbers)
    if len(field) < 8 * wanted:
        raise BrokenError(f"the member {shown(name)} has zip64 sizes that are cut off.")
    values = iter(struct.unpack_from(f"<{wanted}Q", field))
    return tuple(next(values) if number == _MAX32 else number for number in numbers)


def _descriptors(entry: Entry, wide: bool) -> tuple[bytes, ...]:
    """What may follow a member whose sizes were not known before; Java decides on 8 bytes by the same signs."""
    large = wide or max(entry.packed, entry.size) > _MAX32
    numbers = struct.pack("<IQQ" if large else "<III", entry.crc, entry.packed, entry.size)
    return numbers, b"PK\x07\x08" + numbers


def _misplaced(entry: Entry, expected: int) -> str:
    if entry.offset < expected:
        return f"its members overlap: {shown(entry.name)} begins inside the one before."
    where = "before the archive's first member" if expected == 0 else "between its members"
    return f"{entry.offset - expected} bytes stand {where}, {shown(entry.name)}."
