"""Archives made to deceive: each is refused in words, leaves nothing behind and runs nothing.

The zips are written record by record, so that every field can lie on its own.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from servekit.errors import ModelError
from servekit.system.archives import archive, zip_records

MODEL = {"modelName": "m", "handler": "h.py", "modelVersion": "2.0"}
MANIFEST = json.dumps({"runtime": "python", "model": MODEL}).encode()
MAX32 = 0xFFFFFFFF


@dataclass
class M:
    """A member of a zip: ``local`` and ``central`` replace fields of its two headers."""

    name: bytes
    data: bytes = b"x"
    method: int = 0
    flags: int = 0
    mode: int = 0o100644
    local: Mapping[str, Any] = field(default_factory=dict)
    central: Mapping[str, Any] = field(default_factory=dict)
    before: bytes = b""
    after: bytes = b""


def zipped(*members: M, plain: bool = True, **how: Any) -> bytes:
    """``how``: prefix, gap (before the directory), between (it and the end), tail, comment, end and end64 fields."""
    own = [M(archive.MANIFEST.encode(), MANIFEST), M(b"h.py", b"class H: pass\n")] if plain else []
    out, lines = bytearray(how.get("prefix", b"")), bytearray()
    for member in (*own, *members):
        out += member.before
        packed = deflated(member.data) if member.method == 8 else member.data
        facts: dict[str, Any] = {
            "name": member.name,
            "flags": member.flags,
            "method": member.method,
            "crc": zlib.crc32(member.data),
            "packed": len(packed),
            "size": len(member.data),
            "extra": b"",
            "offset": len(out),
            "disk": 0,
            "mode": member.mode,
            "mark": b"PK\x03\x04",
            "version": 20,
        }
        here, there = {**facts, **member.local}, {**facts, **member.central}
        out += struct.pack("<4s5H3I2H", here["mark"], 20, here["flags"], here["method"], 0, 33, here["crc"],
                           here["packed"], here["size"], len(here["name"]), len(here["extra"]))  # fmt: skip
        out += here["name"] + here["extra"] + packed + member.after
        lines += struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, there["version"], there["flags"], there["method"],
                             0, 33, there["crc"],
                             there["packed"], there["size"], len(there["name"]), len(there["extra"]), 0,
                             there["disk"], 0, there["mode"] << 16, there["offset"])  # fmt: skip
        lines += there["name"] + there["extra"]
    out += how.get("gap", b"")
    count = len(own) + len(members)
    end = {"disk": 0, "here": count, "count": count, "size": len(lines), "offset": len(out), **how.get("end", {})}
    out += lines + how.get("between", b"")
    if "end64" in how:
        wide = {"count": count, "size": end["size"], "offset": end["offset"], "at": len(out), "own": 44, "disks": 1}
        wide |= how["end64"]
        numbers = (wide["count"], wide["count"], wide["size"], wide["offset"])
        out += struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", wide["own"], 45, 45, 0, 0, *numbers)
        out += struct.pack("<4sIQI", b"PK\x06\x07", 0, wide["at"], wide["disks"])
    comment = how.get("comment", b"")
    fields = (end["disk"], 0, end["here"], end["count"], end["size"], end["offset"], len(comment))
    out += struct.pack("<4s4H2IH", b"PK\x05\x06", *fields) + comment
    return bytes(out) + how.get("tail", b"")


def deflated(data: bytes) -> bytes:
    machine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return machine.compress(data) + machine.flush()


def zip64(*numbers: int) -> bytes:
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers)


def described(data: bytes, *, wide: bool = False, signed: bool = True, **lies: int) -> M:
    """A deflated member whose sizes follow it, as streaming writers leave it."""
    packed = len(deflated(data))
    facts = (lies.get("crc", zlib.crc32(data)), lies.get("packed", packed), lies.get("size", len(data)))
    after = (b"PK\x07\x08" if signed else b"") + struct.pack("<IQQ" if wide else "<III", *facts)
    return M(b"w", data, 8, flags=8, local={"crc": 0, "packed": 0, "size": 0}, after=after)


def tarred(*members: tuple[Any, ...], plain: bool = True, form: int = tarfile.PAX_FORMAT, **how: Any) -> bytes:
    """A tar: members are (name, data) or (name, data, fields of its TarInfo)."""
    out = io.BytesIO()
    own = [("m/" + archive.MANIFEST, MANIFEST), ("m/h.py", b"class H: pass\n")] if plain else []
    with tarfile.open(fileobj=out, mode="w", format=form, **how) as tar:
        for name, data, *rest in (*own, *members):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in (rest[0] if rest else {}).items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tgz(*members: tuple[Any, ...], **how: Any) -> bytes:
    return gzip.compress(tarred(*members, **how), 1)


def header(name: bytes, size: bytes = b"00000000000", kind: bytes = b"0", **how: bytes) -> bytes:
    """One header of a tar, its checksum right unless it is given."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[124 : 124 + len(size)], block[156:157] = b"0000644\0", size, kind
    block[257:265] = how.get("magic", b"ustar\x0000")
    block[345 : 345 + len(how.get("prefix", b""))] = how.get("prefix", b"")
    block[148:156] = b" " * 8
    block[148:156] = how.get("checksum", b"%06o\0 " % sum(block))
    return bytes(block)


def raw(*blocks: bytes, end: bytes = bytes(1024)) -> bytes:
    """A tar.gz of these blocks behind a good beginning."""
    good = header(b"m/MAR-INF/MANIFEST.json", b"%011o" % len(MANIFEST)) + MANIFEST.ljust(512, b"\0")
    return gzip.compress(good + b"".join(blocks) + end, 1)


def extension(data: bytes, kind: bytes = b"x") -> bytes:
    return header(b"pax", b"%011o" % len(data), kind) + data.ljust(-(-len(data) // 512) * 512, b"\0")


def record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body)))
    length = len(body) + len(str(length))
    return str(length).encode() + body


def with_manifest(text: bytes, *more: M) -> bytes:
    return zipped(M(archive.MANIFEST.encode(), text), *more, plain=False)


def with_config(text: bytes) -> bytes:
    return with_manifest(json.dumps({"model": {**MODEL, "configFile": "c.yaml"}}).encode(), M(b"c.yaml", text))


LAUGHS = b"a0: &a0 [x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)
)
MERGES = b"a0: &a0 {x: 1}\n" + b"".join(
    b"a%d: &a%d {<<: [%s]}\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)
)
CHAIN = b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [[[[[[[*a%d]]]]]]]\n" % (n, n, n - 1) for n in range(1, 40))

NAMES: dict[bytes, str] = {
    b"../evil": "would land outside",
    b"a/../../evil": "would land outside",
    b"a/..": "would land outside",
    b"/etc/passwd": "would land outside",
    b"//host/share": "would land outside",
    b"a\\b": "would land outside",
    b"C:evil": "would land outside",
    b"C:/evil": "would land outside",
    b"nul\0.py": "has a control character in its name",
    b"line\nbreak": "has a control character in its name",
    b"\x1b[2Jred": "has a control character in its name",
    b"c1\xc2\x85": "has a control character in its name",
    b"a//b": "has an empty or '.' part in its name",
    b"a/./b": "has an empty or '.' part in its name",
    b"./a": "has an empty or '.' part in its name",
    b"latin\xe9": "has a name that is not UTF-8",
    b"overlong\xc0\xae\xc0\xae/x": "has a name that is not UTF-8",
    b"surrogate\xed\xa0\x80": "has a name that is not UTF-8",
    b"n" * 256: "has a part of more than 255 bytes in its name",
    b"\xc3\xa9" * 128: "has a part of more than 255 bytes in its name",
    b"d/" * 64 + b"f": "has a name of more than 2048 bytes or 64 folders",
    b"/".join([b"n" * 250] * 9): "has a name of more than 2048 bytes or 64 folders",
    b".servekit-stamp.json": "has a name that servekit keeps for itself",
}

ZIPS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty name": (lambda: zipped(M(b"")), "would land outside"),
    "link": (lambda: zipped(M(b"l", mode=0o120777)), "is a link or a special file"),
    "device": (lambda: zipped(M(b"l", mode=0o020666)), "is a link or a special file"),
    "pipe": (lambda: zipped(M(b"l", mode=0o010666)), "is a link or a special file"),
    "folder by mode": (lambda: zipped(M(b"d", b"", mode=0o040755)), "is a folder by its mode and a file by its name"),
    "folder with contents": (lambda: zipped(M(b"d/")), "is a folder with contents"),
    "twice": (lambda: zipped(M(b"a"), M(b"a", b"y")), "'a' is there twice"),
    "folder twice": (lambda: zipped(M(b"a/", b""), M(b"a/", b"")), "'a' is there twice"),
    "file and folder": (lambda: zipped(M(b"a"), M(b"a/", b"")), "'a' is both a file and a folder"),
    "file above a file": (lambda: zipped(M(b"a/b"), M(b"a")), "'a' is both a file and a folder"),
    "encrypted": (lambda: zipped(M(b"a", flags=1)), "'a' is encrypted"),
    "strongly encrypted": (lambda: zipped(M(b"a", flags=0x41)), "'a' is encrypted"),
    "masked headers": (lambda: zipped(M(b"a", flags=0x2000)), "'a' is encrypted"),
    "encrypted only for Java": (lambda: zipped(M(b"a", local={"flags": 1})), "another flags in its own header"),
    "bzip2": (lambda: zipped(M(b"a", method=12)), "is compressed by method 12"),
    "lzma": (lambda: zipped(M(b"a", method=14)), "is compressed by method 14"),
    "zstandard": (lambda: zipped(M(b"a", method=93)), "is compressed by method 93"),
    "deflate64": (lambda: zipped(M(b"a", method=9)), "is compressed by method 9"),
    "other method": (lambda: zipped(M(b"a", method=8, local={"method": 0})), "another method in its own header"),
    "stored, sizes behind": (
        lambda: zipped(M(b"a", b"x", flags=8, after=struct.pack("<III", zlib.crc32(b"x"), 1, 1))),
        "is stored with its sizes behind it",
    ),
    "stored of two sizes": (lambda: zipped(M(b"a", local={"size": 9}, central={"size": 9})), "9 bytes out of 1"),
    "impossible ratio": (
        lambda: zipped(M(b"a", method=8, local={"size": 10**8}, central={"size": 10**8})),
        "expands 100000000 bytes out of almost none",
    ),
    "a bomb of many members": (
        lambda: zipped(
            *(
                M(b"z%d" % n, b"x" * 50_000, 8, local={"size": 50_000_000}, central={"size": 50_000_000})
                for n in range(40)
            )
        ),
        "expands",
    ),
    "other name": (lambda: zipped(M(b"a", local={"name": b"b"})), "the member 'a' is called 'b' in its own header"),
    "traversal only for Java": (lambda: zipped(M(b"aaaaaaa", local={"name": b"../evil"})), "is called '../evil'"),
    "other size": (lambda: zipped(M(b"a", local={"size": 2})), "another size in its own header"),
    "other compressed size": (
        lambda: zipped(M(b"a", local={"packed": 2})),
        "another compressed size in its own header",
    ),
    "other checksum": (lambda: zipped(M(b"a", local={"crc": 2})), "another checksum in its own header"),
    "second name": (
        lambda: zipped(M(b"a", central={"extra": struct.pack("<HHBI", 0x7075, 6, 1, 0) + b"b"})),
        "has a second name, 'b'",
    ),
    "damaged extra field": (lambda: zipped(M(b"a", central={"extra": b"\x01\0\xff\xff"})), "has damaged extra fields"),
    "cut extra field": (lambda: zipped(M(b"a", local={"extra": b"\x01\0"})), "has damaged extra fields"),
    "two zip64 fields": (
        lambda: zipped(M(b"a", central={"size": MAX32, "extra": zip64(1) + zip64(2)})),
        "has damaged extra fields",
    ),
    "zip64 size that is cut": (
        lambda: zipped(M(b"a", central={"size": MAX32, "packed": MAX32, "extra": zip64(1)})),
        "zip64 sizes that are cut off",
    ),
    "zip64 size that lies": (
        lambda: zipped(M(b"a", local={"size": MAX32, "packed": MAX32, "extra": zip64(7, 1)})),
        "another size in its own header",
    ),
    "zip64 size beyond everything": (
        lambda: zipped(
            M(
                b"a",
                local={"size": MAX32, "packed": MAX32, "extra": zip64(2**63, 2**63)},
                central={"size": MAX32, "packed": MAX32, "extra": zip64(2**63, 2**63)},
            )
        ),
        "its last member reaches into its directory",
    ),
    "zip64 offset beyond everything": (
        lambda: zipped(M(b"a", central={"offset": MAX32, "extra": zip64(2**64 - 1)})),
        "stand between its members",
    ),
    "zip64 count that lies": (lambda: zipped(end64={"count": 9}), "zip64 records contradict"),
    "zip64 offset that lies": (lambda: zipped(end64={"offset": 9}), "zip64 records contradict"),
    "zip64 record elsewhere": (lambda: zipped(end64={"at": 0}), "zip64 records contradict"),
    "zip64 record of another length": (lambda: zipped(end64={"own": 60}), "zip64 records contradict"),
    "zip64 in parts": (lambda: zipped(end64={"disks": 2}), "zip64 records contradict"),
    "a version to come": (lambda: zipped(M(b"a", central={"version": 640})), "'a' needs a reader of version 64.0"),
    "members on another disk": (lambda: zipped(M(b"a", central={"disk": 1})), "its directory is damaged"),
    "one of several parts": (lambda: zipped(end={"disk": 1}), "one part of a zip in several parts"),
    "overlap": (lambda: zipped(M(b"a", b"x" * 99), M(b"b", central={"offset": 200})), "its members overlap"),
    "the same bytes twice": (lambda: zipped(M(b"a"), M(b"b", central={"offset": 0})), "its members overlap"),
    "last member over the directory": (
        lambda: zipped(M(b"a", local={"size": 99, "packed": 99}, central={"size": 99, "packed": 99})),
        "its last member reaches into its directory",
    ),
    "hidden member": (lambda: zipped(M(b"a", before=b"PK\x03\x04" + bytes(26))), "30 bytes stand between its members"),
    "hidden member at the end": (
        lambda: zipped(gap=b"PK\x03\x04" + bytes(26)),
        "30 bytes stand between its members and its directory",
    ),
    "bytes inside the end": (lambda: zipped(between=b"junk"), "4 bytes stand before or inside the archive"),
    "prepended script": (lambda: b"#!/bin/sh\n" + zipped(), "10 bytes stand before or inside the archive"),
    "prepended with right offsets": (
        lambda: zipped(prefix=b"#!/bin/sh\n"),
        "10 bytes stand before the archive's first",
    ),
    "appended": (lambda: zipped(tail=b"junk"), "bytes follow its end"),
    "two zips": (lambda: zipped(M(b"other")) + zipped(), "bytes stand before or inside the archive"),
    "a zip in the comment": (lambda: zipped(comment=zipped(plain=False)), "bytes stand before or inside the archive"),
    "no header at the offset": (lambda: zipped(M(b"a", local={"mark": b"PK\x03\x05"})), "'a' has no header where"),
    "count too small": (lambda: zipped(end={"here": 1, "count": 1}), "its directory has 2 members and says 1"),
    "count too large": (lambda: zipped(end={"here": 9, "count": 9}), "its directory has 2 members and says 9"),
    "directory of another size": (lambda: zipped(end={"size": 9}), "bytes stand before or inside the archive"),
    "directory beyond the end": (lambda: zipped(end={"offset": 10**6}), "bytes are missing from the archive"),
    "too many members": (
        lambda: zipped(end={"here": 0xFFFF, "count": 0xFFFF}, end64={"count": 100_001}),
        "more than 100000 members",
    ),
    "directory too large": (
        lambda: zipped(end={"size": MAX32, "offset": MAX32}, end64={"size": 10**9, "offset": 0}),
        "its directory is larger than 64 MiB",
    ),
    "sizes behind that lie": (lambda: zipped(described(b"x" * 99, size=98)), "is followed by other sizes"),
    "checksum behind that lies": (lambda: zipped(described(b"x" * 99, crc=1)), "is followed by other sizes"),
    "wide sizes behind a small member": (lambda: zipped(described(b"x" * 99, wide=True)), "is followed by other sizes"),
    "sizes behind, in one header only": (
        lambda: zipped(M(b"a", b"x" * 99, 8, central={"flags": 8})),
        "another flags in its own header",
    ),
    "empty file": (lambda: b"", "it is empty"),
    "one byte": (lambda: b"P", "is not an archive"),
    "a web page": (lambda: b"<html>not found</html>", "is not an archive"),
    "no members": (lambda: zipped(plain=False), "it holds no MAR-INF/MANIFEST.json: it is a zip"),
    "manifest elsewhere": (
        lambda: zipped(M(b"mar-inf/manifest.json"), plain=False),
        "it holds no MAR-INF/MANIFEST.json",
    ),
    "manifest twice in one object": (
        lambda: with_manifest(b'{"model": {"modelName": "m", "handler": "h", "handler": "evil"}}'),
        "the key 'handler' is there twice",
    ),
    "manifest nested deep": (
        lambda: with_manifest(b'{"model": {"modelName": "m", "handler": "h"}, "x": ' + b"[" * 40 + b"]" * 40 + b"}"),
        "nested more than 32 deep",
    ),
    "manifest nested without end": (lambda: with_manifest(b'{"a":' * 100_000), "MANIFEST.json is not JSON"),
    "manifest with NaN": (lambda: with_manifest(b'{"model": NaN}'), "NaN is no JSON number"),
    "manifest with half a letter": (lambda: with_manifest(b'{"model": "\\ud800"}'), "is not JSON"),
    "manifest of another encoding": (lambda: with_manifest('{"model": 1}'.encode("utf-16")), "is not JSON"),
    "manifest too large": (lambda: with_manifest(b" " * 2**20 + b"{}"), "MANIFEST.json is larger than 1 MiB"),
    "configFile that is no name": (
        lambda: with_manifest(b'{"model": {"modelName": "m", "handler": "h", "configFile": ["c"]}}'),
        "which is not in the archive",
    ),
    "configFile outside": (
        lambda: with_manifest(b'{"model": {"modelName": "m", "handler": "h", "configFile": "/etc/passwd"}}'),
        "names /etc/passwd, which is not in the archive",
    ),
    "yaml aliases": (lambda: with_config(LAUGHS), "more than 100000 values once its aliases are written out"),
    "yaml merges": (lambda: with_config(MERGES), "more than 100000 values once its aliases are written out"),
    "yaml alias of itself": (lambda: with_config(b"a: &a [*a]"), "an alias that contains itself"),
    "yaml nested": (lambda: with_config(b"a: " + b"[" * 40 + b"]" * 40), "nested more than 32 deep"),
    "yaml nested by aliases": (lambda: with_config(CHAIN), "nested more than 32 deep"),
    "yaml nested without end": (lambda: with_config(b"a: " + b"[" * 50_000), "is not YAML"),
    "yaml of objects": (lambda: with_config(b"a: !!python/object/apply:os.system [id]"), "is not YAML"),
    "yaml number that is none": (lambda: with_config(b"a: !!int ''"), "is not YAML"),
    "yaml flag that is none": (lambda: with_config(b"a: !!bool x"), "is not YAML"),
    "yaml date that is none": (lambda: with_config(b"a: !!timestamp x"), "is not YAML"),
    "yaml date of no calendar": (lambda: with_config(b"a: 2020-99-99"), "is not YAML"),
    "yaml of two documents": (lambda: with_config(b"a: 1\n---\nb: 2\n"), "is not YAML"),
    "yaml too large": (lambda: with_config(b"#" * (256 * 1024 + 1)), "c.yaml is larger than 262144 bytes"),
    "hashes with a key twice": (
        lambda: zipped(M(archive.HASHES.encode(), b'{"members": {}, "members": {}}')),
        "the key 'members' is there twice",
    ),
}

TARS: dict[str, tuple[Callable[[], bytes], str]] = {
    "symbolic link": (lambda: tgz(("m/l", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc"})), "'m/l' is a link"),
    "hard link": (lambda: tgz(("m/l", b"", {"type": tarfile.LNKTYPE, "linkname": "m/h.py"})), "'m/l' is a link"),
    "character device": (lambda: tgz(("m/l", b"", {"type": tarfile.CHRTYPE})), "is neither a file nor a folder"),
    "block device": (lambda: tgz(("m/l", b"", {"type": tarfile.BLKTYPE})), "is neither a file nor a folder"),
    "pipe": (lambda: tgz(("m/l", b"", {"type": tarfile.FIFOTYPE})), "is neither a file nor a folder"),
    "contiguous file": (lambda: tgz(("m/l", b"", {"type": tarfile.CONTTYPE})), "is neither a file nor a folder"),
    "old sparse file": (lambda: raw(header(b"m/s", kind=b"S")), "is neither a file nor a folder"),
    "pax sparse file": (
        lambda: tgz(("m/s", b"x", {"pax_headers": {"GNU.sparse.major": "1"}})),
        "sparse files and other encodings are refused",
    ),
    "multi-volume": (lambda: raw(header(b"m/s", kind=b"M")), "is neither a file nor a folder"),
    "global header": (lambda: tgz(pax_headers={"path": "evil"}), "is neither a file nor a folder"),
    "long link": (
        lambda: tgz(("m/l", b"", {"type": tarfile.SYMTYPE, "linkname": "x" * 200}), form=tarfile.GNU_FORMAT),
        "is neither a file nor a folder",
    ),
    "link name on a file": (lambda: raw(extension(record(b"linkpath", b"/etc")), header(b"m/f")), "uses 'linkpath'"),
    "other encoding": (lambda: raw(extension(record(b"hdrcharset", b"BINARY")), header(b"m/f")), "uses 'hdrcharset'"),
    "pax path outside": (
        lambda: raw(extension(record(b"path", b"m/../../evil")), header(b"m/f")),
        "would land outside",
    ),
    "pax path with NUL": (
        lambda: raw(extension(record(b"path", b"m/a\0b")), header(b"m/f")),
        "has a control character",
    ),
    "pax path twice": (
        lambda: raw(extension(record(b"path", b"m/a") + record(b"path", b"m/b")), header(b"m/f")),
        "a tar extension is damaged",
    ),
    "pax record that overruns": (
        lambda: raw(extension(b"999 path=m/a\n"), header(b"m/f")),
        "a tar extension is damaged",
    ),
    "pax record without length": (lambda: raw(extension(b"path=m/a\n"), header(b"m/f")), "a tar extension is damaged"),
    "pax record of no length": (lambda: raw(extension(b"0 path=m/a\n"), header(b"m/f")), "a tar extension is damaged"),
    "pax size that is none": (lambda: raw(extension(record(b"size", b"-1")), header(b"m/f")), "its size is no number"),
    "pax size beyond everything": (
        lambda: raw(extension(record(b"size", b"9" * 18)), header(b"m/f")),
        "claims 9999999999",
    ),
    "absurd pax header": (lambda: raw(header(b"pax", b"77777777777", b"x")), "a tar extension is larger than 64 KiB"),
    "absurd long name": (lambda: raw(header(b"pax", b"77777777777", b"L")), "a tar extension is larger than 64 KiB"),
    "two extensions": (
        lambda: raw(extension(record(b"path", b"m/a")), extension(b"m/b\0", b"L"), header(b"m/f")),
        "there are two at once",
    ),
    "extension of nothing": (
        lambda: raw(extension(record(b"path", b"m/a"))),
        "a tar extension stands before no member",
    ),
    "long name outside": (lambda: raw(extension(b"m/../../evil\0", b"L"), header(b"m/f")), "would land outside"),
    "prefix outside": (lambda: raw(header(b"evil", prefix=b"m/..")), "would land outside"),
    "GNU header with a prefix": (
        lambda: raw(header(b"f", magic=b"ustar  \0", prefix=b"m")),
        "fields that programs read in different ways",
    ),
    "checksum": (lambda: raw(header(b"m/f", checksum=b"000000\0 ")), "a header's checksum differs"),
    "size of no number": (lambda: raw(header(b"m/f", b"0000000000x")), "a header's number is none"),
    "negative size": (lambda: raw(header(b"m/f", b"\xff" * 12)), "a header's number is none"),
    "size of many zettabytes": (lambda: raw(header(b"m/f", b"\x80" + b"\xff" * 11)), "more than a model would"),
    "terabyte in a kilobyte": (
        lambda: raw(header(b"m/f", b"\x80" + (10**12).to_bytes(11, "big"))),
        "claims 1000000000000",
    ),
    "member cut off": (lambda: raw(header(b"m/f", b"00000010000"), end=b""), "it is truncated"),
    "no end": (lambda: raw(end=b""), "ends without an end marker"),
    "bytes behind a member": (
        lambda: raw(header(b"m/f", b"00000000001") + b"xEVIL".ljust(512, b"\0")),
        "bytes stand between its members",
    ),
    "bytes behind the end": (lambda: raw(end=bytes(1024) + header(b"m/evil")), "bytes follow its end marker"),
    "second gzip stream": (
        lambda: tgz() + gzip.compress(tarred(("m/evil", b"x"))),
        "bytes follow its compressed stream",
    ),
    "bytes behind the gzip stream": (lambda: tgz() + b"PK\x03\x04", "bytes follow its compressed stream"),
    "a zip behind the gzip stream": (lambda: tgz() + zipped(), "bytes follow its compressed stream"),
    "gzip cut off": (lambda: tgz()[:-20], "it is truncated"),
    "gzip checksum": (lambda: tgz()[:-8] + bytes(8), "it is damaged"),
    "gzip header only": (lambda: b"\x1f\x8b\x08", "it is truncated"),
    "gzip of another method": (lambda: b"\x1f\x8b\x07" + bytes(20), "it is damaged"),
    "no tar inside": (lambda: gzip.compress(b"hello" * 200), "it is no tar"),
    "a zip inside": (lambda: gzip.compress(zipped() * 4), "it is no tar"),
    "folder with contents": (lambda: raw(header(b"m/d/", b"00000000001", b"5"), b"x" + bytes(511)), "is a folder with"),
    "file named as a folder": (lambda: raw(header(b"m/d/")), "is a file by its kind and a folder by its name"),
    "twice": (lambda: tgz(("m/h.py", b"evil")), "'h.py' is there twice"),
    "file and folder": (lambda: tgz(("m/a", b"x"), ("m/a/b", b"x")), "'a' is both a file and a folder"),
    "beside the folder": (lambda: tgz(("evil.py", b"x")), "stands beside the model's folder"),
    "two folders": (lambda: tgz(("n/evil.py", b"x")), "it holds several things at its top ('m', 'n')"),
    "no folder": (lambda: tgz((archive.MANIFEST, MANIFEST), plain=False), "it holds no MAR-INF/MANIFEST.json"),
    "folder is outside": (lambda: tgz(("../h.py", b"x"), plain=False), "would land outside"),
    "folder is here": (lambda: tgz(("./h.py", b"x"), plain=False), "has an empty or '.' part in its name"),
    "absolute": (lambda: raw(header(b"/etc/passwd")), "would land outside"),
    "empty name": (lambda: raw(header(b"")), "the member '' would land outside"),
    "no members": (lambda: tgz(plain=False), "it holds no MAR-INF/MANIFEST.json: it is a tar.gz"),
    "bomb": (lambda: gzip.compress(bytes(200 << 20), 1), "bomb"),
}


def refuse(path: Path) -> str:
    """Refused on opening or on unpacking, and nothing remains of the attempt."""
    around = path.parent
    cache = around / "cache"
    before = set(around.rglob("*")) - {cache, *cache.glob(".*.lock")}
    with pytest.raises(ModelError) as caught:
        archive.unpack(archive.open_archive(path, cache), cache)
    assert set(around.rglob("*")) - {cache, *cache.glob(".*.lock")} == before
    return caught.value.message


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_names_in_a_zip(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "m.mar").write_bytes(zipped(M(name)))
    told = refuse(tmp_path / "m.mar")
    assert NAMES[name] in told
    assert "\n" not in told


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_names_in_a_tar(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "m.tar.gz").write_bytes(raw(extension(record(b"path", b"m/" + name)), header(b"m/f")))
    told = refuse(tmp_path / "m.tar.gz")
    assert NAMES[name] in told
    assert "\n" not in told


@pytest.mark.parametrize("case", ZIPS)
def test_zips(tmp_path: Path, case: str) -> None:
    build, words = ZIPS[case]
    (tmp_path / "m.mar").write_bytes(build())
    assert words in refuse(tmp_path / "m.mar")


@pytest.mark.parametrize("case", TARS)
def test_tars(tmp_path: Path, case: str) -> None:
    build, words = TARS[case]
    (tmp_path / "m.tar.gz").write_bytes(build())
    assert words in refuse(tmp_path / "m.tar.gz")


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (M(b"w", b"x" * 500, 8, local={"crc": 1}, central={"crc": 1}), "its checksum differs"),
        (M(b"w", b"x" * 500, 8, local={"size": 400}, central={"size": 400}), "is longer than the directory says"),
        (M(b"w", b"x" * 500, 8, local={"size": 600}, central={"size": 600}), "its checksum differs"),
        (M(b"w", local={"method": 8}, central={"method": 8}), "is damaged"),
    ],
)
def test_contents_that_only_unpacking_can_see(tmp_path: Path, member: M, words: str) -> None:
    (tmp_path / "m.mar").write_bytes(zipped(member))
    assert words in refuse(tmp_path / "m.mar")


def test_compressed_data_that_ends_before_its_member(tmp_path: Path) -> None:
    """Java goes on after the end of the deflated data, and finds another member there."""
    inner = deflated(b"x") + b"PK\x03\x04 hidden"
    facts = {"method": 8, "size": 1, "crc": zlib.crc32(b"x")}
    (tmp_path / "m.mar").write_bytes(zipped(M(b"w", inner, local=facts, central=facts)))
    assert "bytes follow its compressed data" in refuse(tmp_path / "m.mar")
    cut = deflated(bytes(range(256)))[:-9]
    facts = {"method": 8, "size": 256, "crc": zlib.crc32(bytes(range(256)))}
    (tmp_path / "m.mar").write_bytes(zipped(M(b"w", cut, local=facts, central=facts)))
    assert "its compressed data is cut off" in refuse(tmp_path / "m.mar")


def folder(root: Path, **files: bytes) -> Path:
    (root / "m" / "MAR-INF").mkdir(parents=True)
    (root / "m" / "MAR-INF" / "MANIFEST.json").write_bytes(MANIFEST)
    (root / "m" / "h.py").write_bytes(b"class H: pass\n")
    for name, data in files.items():
        (root / "m" / name).write_bytes(data)
    return root / "m"


def _named(name: bytes) -> Callable[[Path], object]:
    return lambda root: Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_bytes(b"x")


def _deep(root: Path) -> None:
    for _ in range(70):
        root = root / "d"
        root.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: (root / "l").symlink_to("h.py"), "'l' is a link or a special file"),
        (lambda root: (root / "l").symlink_to("/etc"), "'l' is a link or a special file"),
        (lambda root: (root / "l").symlink_to(root), "'l' is a link or a special file"),
        (lambda root: (root / "l").symlink_to("nowhere"), "'l' is a link or a special file"),
        (lambda root: os.mkfifo(root / "p"), "'p' is a link or a special file"),
        (_named(b"latin\xe9"), "has a name that is not UTF-8"),
        (_named(b"line\nbreak"), "has a control character in its name"),
        (_named(b"back\\slash"), "would land outside"),
        (_named(b"C:evil"), "would land outside"),
        (_named(b".servekit-stamp.json"), "keeps for itself"),
        (_deep, "has a name of more than 2048 bytes or 64 folders"),
        (lambda root: (root / "MAR-INF" / "MANIFEST.json").unlink(), "it is a folder, but not a model archive"),
        (lambda root: (root / "MAR-INF" / "MANIFEST.json").write_bytes(b"{"), "is not JSON"),
        (lambda root: (root / "MAR-INF" / "servekit.json").write_bytes(b'{"members": {}}'), "h.py is not what was"),
    ],
)
def test_folders(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    root = folder(tmp_path)
    spoil(root)
    assert words in refuse(root)


def test_what_is_neither_a_file_nor_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.mar")
    assert "it is neither a file nor a folder" in refuse(tmp_path / "m.mar")


@pytest.mark.parametrize("change", ["contents", "size", "added", "removed", "link"])
def test_a_folder_that_changes_after_the_check(tmp_path: Path, change: str) -> None:
    root = folder(tmp_path, w=b"weights")
    info = archive.open_archive(root)
    match change:
        case "contents":
            (root / "w").write_bytes(b"veights")
        case "size":
            (root / "w").write_bytes(b"more weights")
        case "added":
            (root / "evil.py").write_bytes(b"")
        case "removed":
            (root / "w").unlink()
        case "link":
            (root / "w").unlink()
            (root / "w").symlink_to("/etc/passwd")
    with pytest.raises(ModelError, match=f"{root}: "):
        archive.unpack(info, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f".{info.sha256}.lock"]


def test_the_same_members_as_zip_and_tar_and_folder(tmp_path: Path) -> None:
    (tmp_path / "m.mar").write_bytes(
        zipped(M("é.txt".encode(), b"x", flags=0x800), M(b"sub/", b""), M(b"sub/w", b"y" * 99, 8))
    )
    (tmp_path / "m.tar.gz").write_bytes(
        tgz(("m/é.txt", b"x"), ("m/sub", b"", {"type": tarfile.DIRTYPE}), ("m/sub/w", b"y" * 99))
    )
    root = folder(tmp_path, **{"é.txt": b"x"})
    (root / "sub").mkdir()
    (root / "sub" / "w").write_bytes(b"y" * 99)
    infos = [archive.open_archive(tmp_path / name) for name in ("m.mar", "m.tar.gz", "m")]
    assert [info.form for info in infos] == ["mar", "tgz", "no-archive"]
    wanted = {archive.MANIFEST: len(MANIFEST), "h.py": 14, "sub/w": 99, "é.txt": 1}
    for info in infos:
        assert (info.name, info.version, info.member_sizes, info.members) == ("m", "2.0", wanted, tuple(sorted(wanted)))
        assert archive.read_member(info, "sub/w", 99) == b"y" * 99
        unpacked = archive.unpack(info, tmp_path / "cache")
        assert {name: (unpacked / name).stat().st_size for name in wanted} == wanted
        assert (unpacked / "é.txt").read_bytes() == b"x"
        assert (unpacked / "é.txt").stat().st_mode & 0o777 == 0o444
        assert not (unpacked / "é.txt").is_symlink()
    assert len({info.sha256 for info in infos}) == 3


@pytest.mark.parametrize("signed", [True, False])
def test_a_streamed_zip_is_as_good_as_any(tmp_path: Path, signed: bool) -> None:
    path = tmp_path / "m.mar"
    path.write_bytes(zipped(described(b"weights" * 99, signed=signed), M(b"z")))
    info = archive.open_archive(path)
    assert (archive.unpack(info, tmp_path / "cache") / "w").read_bytes() == b"weights" * 99
    path.write_bytes(zipped(M(b"w"), end64={}, comment=b"made by hand"))
    assert "w" in archive.open_archive(path).members


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_of_every_tar(tmp_path: Path, form: int) -> None:
    name = "m/" + "d" * 90 + "/" + "f" * 90
    path = tmp_path / "m.tar.gz"
    path.write_bytes(tgz((name, b"x"), form=form))
    assert archive.open_archive(path).member_sizes[name[2:]] == 1


@pytest.mark.parametrize("size", [3 << 30, 5 << 30])
def test_members_of_more_than_2_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The file has a hole where the weights are: only what stands around it is read."""
    path = tmp_path / "m.mar"
    entries: list[zip_records.Entry] = []
    with path.open("wb") as file:
        for name, data in (("w.pt", None), (archive.MANIFEST, MANIFEST), ("after", b"here")):
            length, crc = (size, 7) if data is None else (len(data), zlib.crc32(data))
            entries.append(zip_records.Entry(name.encode(), length, crc, file.tell()))
            file.write(zip_records.local_header(entries[-1]))
            file.seek(size, os.SEEK_CUR) if data is None else file.write(data)
        start = file.tell()
        lines = b"".join(map(zip_records.central_header, entries))
        file.write(lines + zip_records.end_records(len(entries), start, len(lines)))
    with zipfile.ZipFile(path) as oracle:
        assert oracle.getinfo("w.pt").file_size == size
    monkeypatch.setattr("servekit.system.file_digest.sha256", lambda *_: "0" * 64)
    info = archive.open_archive(path)
    assert info.member_sizes == {"w.pt": size, archive.MANIFEST: len(MANIFEST), "after": 4}
    assert archive.read_member(info, "after", 4) == b"here"


def test_a_tar_may_hold_more_than_2_gib(tmp_path: Path) -> None:
    """8 GiB and more stand in a pax record; the header's own size is 0 then."""
    told = raw(extension(record(b"size", b"%d" % (9 << 30))), header(b"m/w.pt"))
    (tmp_path / "m.tar.gz").write_bytes(told)
    assert f"'m/w.pt' claims {9 << 30} bytes" in refuse(tmp_path / "m.tar.gz")


def test_very_many_members_are_read_in_no_time(tmp_path: Path) -> None:
    path = tmp_path / "m.mar"
    path.write_bytes(zipped(*(M(b"f%d" % number, b"") for number in range(5000))))
    assert len(archive.open_archive(path).members) == 5002
