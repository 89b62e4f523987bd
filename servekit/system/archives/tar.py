"""A model archive as a compressed tar (``NAME.tar.gz``) with everything in one folder, its name free.

Read as one stream, never sought in. Of all that tar can express only files and folders are taken; the few
fields that matter are read here, because readers differ in how they combine the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servekit.system import file_digest
from servekit.system.archives.gzip_stream import GzipStream
from servekit.system.archives.names import (
    CHUNK,
    HASHES,
    MANIFEST,
    MAX_MEMBERS,
    BrokenError,
    Listing,
    Names,
    identity,
    is_bomb,
    name_problem,
    shown,
)

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
# Names and sizes that do not fit into a header, and nothing else.
_MAX_EXTENSION = 64 * 1024
_MAX_KEPT, _MAX_KEPT_TOGETHER = 32 * 1024 * 1024, 64 * 1024 * 1024
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*|[ \0]+")
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ")
_REFUSED_KEYS = (b"GNU.sparse.", b"linkpath", b"hdrcharset")


@dataclass(frozen=True)
class Header:
    """One member, its extensions included. ``kind`` is tar's letter; ``size`` in bytes."""

    name: bytes
    size: int
    kind: bytes


class TarReader:
    """Reads an open file; see archive_names.Reader."""

    form = "tgz"

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        status = os.fstat(descriptor)
        self._length = status.st_size
        self.identity = identity(status)

    def listing(self) -> Listing:
        names = Names()
        texts: dict[str, bytes] = {}
        tops: set[bytes] = set()
        broken = ""
        try:
            for header, blocks in self._members():
                top, _, rest = header.name.partition(b"/")
                tops.add(top)
                folder = header.kind == b"5"
                if problem := _problem(header):
                    names.problems.append(f"the member {shown(header.name)} {problem}.")
                elif _is_bad(top):
                    names.add(header.name, header.size, folder=folder)
                elif rest:
                    name = names.add(rest, header.size, folder=folder)
                    if name and not folder and _worth_keeping(name, header.size, texts):
                        texts[name] = b"".join(blocks)
                elif not folder:
                    names.problems.append(f"the member {shown(header.name)} stands beside the model's folder.")
        except BrokenError as error:
            broken = str(error)
        listing = names.finish()
        if len(tops) > 1:
            several = ", ".join(shown(top) for top in sorted(tops)[:5])
            listing.problems.append(f"it holds several things at its top ({several}); TorchServe takes one folder.")
        listing.problems += [broken] if broken else []
        listing.complete, listing.texts = not broken, texts
        return listing

    def stream(self, only: frozenset[str] | None = None) -> Iterator[tuple[str, Iterator[bytes]]]:
        for header, blocks in self._members():
            name = header.name.partition(b"/")[2].decode(errors="replace")
            if header.kind != b"5" and (only is None or name in only):
                yield name, blocks

    def sha256(self, memory: Path | None) -> str:
        return file_digest.sha256(self._path, memory)

    def _members(self) -> Iterator[tuple[Header, Iterator[bytes]]]:
        """Each member with its blocks; what the caller leaves of them is passed over."""
        source = GzipStream(self._descriptor, self._length)
        for _ in range(2 * MAX_MEMBERS):
            header = _header(source)
            if header is None:
                _only_zeros_follow(source)
                return
            if is_bomb(header.size, self._length):
                what = f"the member {shown(header.name)} claims {header.size} bytes"
                raise BrokenError(f"{what} out of {self._length}: more than a model would.")
            blocks = _blocks(source, header.size)
            yield header, blocks
            for _block in blocks:
                pass
            if source.read(-header.size % _BLOCK).strip(b"\0"):
                raise BrokenError(f"bytes stand between its members, after {shown(header.name)}.")
        raise BrokenError(f"it has more than {MAX_MEMBERS} members.")


def _blocks(source: GzipStream, size: int) -> Iterator[bytes]:
    for position in range(0, size, CHUNK):
        yield source.read(min(CHUNK, size - position))


def _problem(header: Header) -> str | None:
    if header.kind in (b"1", b"2"):
        return "is a link"
    if header.kind not in (b"0", b"\0", b"5"):
        return "is neither a file nor a folder"
    if header.kind == b"5" and header.size:
        return "is a folder with contents"
    if header.kind != b"5" and header.name.endswith(b"/"):
        return "is a file by its kind and a folder by its name"
    return None


def _is_bad(top: bytes) -> bool:
    """Whether the folder that holds everything has a name that no member may have."""
    try:
        return name_problem(top.decode()) is not None
    except UnicodeDecodeError:
        return True


def _worth_keeping(name: str, size: int, kept: dict[str, bytes]) -> bool:
    """Texts that are read at once: the manifest comes last, so that what it names is not known yet."""
    wanted = name in (MANIFEST, HASHES) or name.endswith((".yaml", ".yml"))
    return wanted and size <= _MAX_KEPT and size + sum(map(len, kept.values())) <= _MAX_KEPT_TOGETHER


def _header(source: GzipStream) -> Header | None:
    """The next member; None at the end marker. BrokenError for a header that is none, or that contradicts itself."""
    name: bytes | None = None
    size: int | None = None
    extended = False
    while True:
        block = source.read(_BLOCK)
        if block == _ZEROS:
            if extended:
                raise BrokenError("a tar extension stands before no member.")
            return None
        header = _parsed(block)
        if header.kind not in (b"x", b"L"):
            return Header(header.name if name is None else name, header.size if size is None else size, header.kind)
        if extended or header.size > _MAX_EXTENSION:
            raise BrokenError(f"a tar extension is larger than {_MAX_EXTENSION >> 10} KiB, or there are two at once.")
        data, extended = source.read(header.size), True
        source.read(-header.size % _BLOCK)
        if header.kind == b"L":
            name = data.partition(b"\0")[0]
        else:
            records = _pax(data)
            name = records.get(b"path")
            size = _decimal(records[b"size"]) if b"size" in records else None


def _parsed(block: bytes) -> Header:
    total = sum(block) - sum(block[148:156]) + 8 * 32
    checksum = _OCTAL.fullmatch(block[148:156])
    if not checksum or int(checksum[1] or b"0", 8) != total:
        raise BrokenError("it is no tar, or a damaged one: a header's checksum differs.")
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500]
    if block[257:263] == b"ustar\0":
        prefix = prefix.partition(b"\0")[0]
        name = prefix + b"/" + name if prefix else name
    elif prefix.strip(b"\0"):  # there GNU keeps what only its own sparse and incremental archives have
        raise BrokenError(f"the member {shown(name)} has fields that programs read in different ways.")
    return Header(name, _number(block[124:136]), block[156:157])


def _number(field: bytes) -> int:
    """Octal digits, or GNU's binary form for what needs more of them."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    match = _OCTAL.fullmatch(field)
    if not match:
        raise BrokenError("it is a damaged tar: a header's number is none.")
    return int(match[1] or b"0", 8)


def _decimal(value: bytes) -> int:
    if not re.fullmatch(rb"[0-9]{1,20}", value):
        raise BrokenError("a tar extension is damaged: its size is no number.")
    return int(value)


def _pax(data: bytes) -> dict[bytes, bytes]:
    """Records of the form "LENGTH KEY=VALUE\\n", where LENGTH counts the whole record."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        match = _RECORD.match(data, position)
        end = position + int(match[1]) if match else 0
        key, equals, value = data[match.end() : end - 1].partition(b"=") if match else (b"", b"", b"")
        if not equals or end > len(data) or data[end - 1 : end] != b"\n" or key in records:
            raise BrokenError("a tar extension is damaged.")
        if key.startswith(_REFUSED_KEYS):
            raise BrokenError(
                f"a tar extension uses {shown(key)}: links, sparse files and other encodings are refused."
            )
        records[key] = value
        position = end
    return records


def _only_zeros_follow(source: GzipStream) -> None:
    while block := source.read_some():
        if block.strip(b"\0"):
            raise BrokenError("bytes follow its end marker.")
