"""Properties of the archive reader: damage is refused or harmless, and what is accepted is what is unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.errors import ModelError
from servekit.system.archives import archive
from servekit.system.archives.names import name_problem

MODEL = {"modelName": "m", "handler": "h.py", "configFile": "c.yaml"}
CONTENT = {
    "h.py": b"class H: pass\n",
    "c.yaml": b"batchSize: 4\nhandler: {kind: image}\n",
    "sub/w.pt": bytes(range(256)) * 3,
    archive.MANIFEST: json.dumps({"model": MODEL}).encode(),
}
OURS = {
    "members": {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in CONTENT.items()}
}


def as_zip(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archived:
        for name, data in files.items():
            archived.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def as_streamed_zip(files: Mapping[str, bytes]) -> bytes:
    """As a program writes it that cannot go back: sizes stand behind the members."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise io.UnsupportedOperation

        def tell(self) -> int:
            raise io.UnsupportedOperation

    out = Pipe()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archived:
        for name, data in files.items():
            archived.writestr(name, data)
    return out.getvalue()


def as_tgz(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archived:
        for name, data in files.items():
            info = tarfile.TarInfo(f"m/{name}")
            info.size = len(data)
            archived.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)


ARCHIVES = {
    "deflated": as_zip(CONTENT),
    "stored": as_zip(CONTENT, zipfile.ZIP_STORED),
    "ours": as_zip({**CONTENT, archive.HASHES: json.dumps(OURS).encode()}, zipfile.ZIP_STORED),
    "streamed": as_streamed_zip(CONTENT),
    "tgz": as_tgz(CONTENT),
    # The compression hides a mutation of the tar itself behind gzip's checksum; here it does not.
    "tar": gzip.decompress(as_tgz(CONTENT)),
}


def tree(folder: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files.pop(".servekit-stamp.json")
    files.pop(archive.HASHES, None)
    return files


def opened(data: bytes) -> dict[str, bytes] | None:
    """What the archive unpacks to; None when it is refused. Nothing may appear outside of the cache."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "m.mar").write_bytes(data)
        try:
            info = archive.open_archive(root / "m.mar")
            folder = archive.unpack(info, root / "cache")
        except ModelError as error:
            assert str(root / "m.mar") in error.message
            content = None
        else:
            content = tree(folder)
            assert set(info.members) - {archive.HASHES} == content.keys()
        assert {path.name for path in root.iterdir()} <= {"m.mar", "cache"}
        left = [path.name for path in root.glob("cache/*") if not path.name.endswith(".lock")]
        assert left == ([] if content is None else [info.sha256])
        return content


def test_all_are_accepted_before_they_are_damaged() -> None:
    for form, data in ARCHIVES.items():
        assert opened(gzip.compress(data) if form == "tar" else data) == CONTENT, form


@pytest.mark.parametrize("form", ARCHIVES)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_mutation_is_refused_or_changes_nothing(form: str, data: st.DataObject) -> None:
    damaged = bytearray(ARCHIVES[form])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["replace", "insert", "delete", "cut", "double"])):
            case "replace":
                damaged[place] = data.draw(st.integers(0, 255))
            case "insert":
                damaged[place:place] = data.draw(st.binary(min_size=1, max_size=40))
            case "delete":
                del damaged[place : place + data.draw(st.integers(1, 40))]
            case "cut":
                del damaged[place:]
            case "double":
                damaged += damaged[place:]
        if not damaged:
            break
    content = opened(gzip.compress(damaged, 1) if form == "tar" else bytes(damaged))
    # A tar has no checksum of its contents: what is inside of a file may differ, or a text may be another.
    if content is not None and form != "tar":
        assert content == CONTENT


@pytest.mark.parametrize("form", ["deflated", "stored", "streamed", "ours"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_an_accepted_zip_says_the_same_forwards_and_by_its_directory(form: str, data: st.DataObject) -> None:
    """Fields of headers are changed, where a zip says things twice; whoever reads it must still see the same."""
    damaged = bytearray(ARCHIVES[form])
    headers = [at for mark in (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\7\x08") for at in positions(damaged, mark)]
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.sampled_from(headers)) + data.draw(st.integers(4, 60))
        damaged[min(at, len(damaged) - 1)] ^= 1 << data.draw(st.integers(0, 7))
    if (content := opened(bytes(damaged))) is not None:
        with zipfile.ZipFile(io.BytesIO(damaged)) as archived:
            by_directory = {name: archived.read(name) for name in archived.namelist()}
        assert by_directory == forwards(bytes(damaged))
        by_directory.pop(archive.HASHES, None)
        assert by_directory == content


@pytest.mark.parametrize("form", ["deflated", "stored", "streamed", "tgz", "folder"])
@settings(max_examples=60, deadline=None)
@given(files=st.dictionaries(st.text(min_size=1, max_size=12), st.binary(max_size=200), max_size=4))
def test_what_is_accepted_is_what_is_unpacked(form: str, files: dict[str, bytes]) -> None:
    names = {name for name in files if usable(name)} - CONTENT.keys()
    wanted = {**CONTENT, **{name: files[name] for name in names if not any(clash(name, other) for other in names)}}
    build = {"deflated": as_zip, "streamed": as_streamed_zip, "tgz": as_tgz}
    if form == "folder":
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            for name, data in wanted.items():
                (root / "m" / name).parent.mkdir(parents=True, exist_ok=True)
                (root / "m" / name).write_bytes(data)
            info = archive.open_archive(root / "m")
            assert tree(archive.unpack(info, root / "cache")) == wanted
            assert {name: archive.read_member(info, name, 1000) for name in wanted} == wanted
    else:
        data = as_zip(wanted, zipfile.ZIP_STORED) if form == "stored" else build[form](wanted)
        assert opened(data) == wanted


def positions(data: bytes, mark: bytes) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(mark), data)]


def forwards(data: bytes) -> dict[str, bytes]:
    """A zip as Java's ZipInputStream reads it: header after header from the first byte, until there is none."""
    files: dict[str, bytes] = {}
    position = 0
    while data[position : position + 4] == b"PK\3\4":
        flags, method, packed, name_size, extra_size = struct.unpack_from("<6xHH8xI4xHH", data, position)
        start = position + 30 + name_size + extra_size
        name = data[position + 30 : position + 30 + name_size].decode("utf-8")
        if method == 0:
            assert not flags & 8, "only DEFLATED entries can have EXT descriptor"
            files[name], position = data[start : start + packed], start + packed
        else:
            machine = zlib.decompressobj(-15)
            files[name] = machine.decompress(data[start:])
            position = len(data) - len(machine.unused_data)
            if flags & 8:
                position += 16 if data[position : position + 4] == b"PK\7\x08" else 12
    return files


def usable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    top = name.split("/")[0]
    return name_problem(name) is None and top not in ("h.py", "c.yaml", "sub", "MAR-INF")


def clash(name: str, other: str) -> bool:
    return other.startswith(f"{name}/") or name.startswith(f"{other}/")


@given(text=st.text(max_size=40))
def test_a_name_that_is_taken_stays_below_its_folder(text: str) -> None:
    try:
        refused = name_problem(text) is not None
    except UnicodeEncodeError:
        return  # half a surrogate pair: no such name comes out of UTF-8
    path = Path("/cache/folder", text)
    assert refused or (Path("/cache/folder") in path.parents and ".." not in path.parts and str(path).endswith(text))
