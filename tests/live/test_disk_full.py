"""A disk that is really full: a small tmpfs of this test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from servekit.errors import StorageError
from servekit.system import storage
from servekit.system.archives import archive
from servekit.system.archives.members import Members
from servekit.system.archives.zipstream import ZipStream
from servekit.verbs.package import write

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """16 MiB, unmounted afterwards."""
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder))
    mounted = subprocess.run(argv, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(("umount", str(folder)), check=True)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.pt"
    path.write_bytes(os.urandom(20 * MIB))
    return path


def members(weights: Path) -> Members:
    collected = Members()
    collected.add(archive.MANIFEST, b'{"model": {"modelName": "m", "handler": "h.py"}}', "manifest")
    collected.add("w.pt", weights, "weights")
    return collected


@pytest.mark.parametrize("foreseen", [True, False])
def test_packing(small_disk: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, foreseen: bool) -> None:
    """Seen before the first byte; and when the room goes while we write, by the write itself."""
    before = small_disk / "m.mar"
    before.write_bytes(b"the archive before")
    if not foreseen:
        monkeypatch.setattr(storage, "check_room", lambda *_: None)
    with pytest.raises(StorageError, match=r"m\.mar: the disk is full \(21 MiB needed, 15 MiB free\)"):
        write(before, members(weights), {})
    assert [path.name for path in small_disk.iterdir()] == ["m.mar"]
    assert before.read_bytes() == b"the archive before"


@pytest.mark.parametrize("foreseen", [True, False])
def test_unpacking(
    small_disk: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreseen: bool
) -> None:
    write(tmp_path / "m.mar", members(weights), {})
    info = archive.open_archive(tmp_path / "m.mar")
    if not foreseen:
        monkeypatch.setattr(storage, "check_room", lambda *_: None)
    with pytest.raises(StorageError, match=r"the disk is full \(21 MiB needed, 1[56] MiB free\)"):
        archive.unpack(info, small_disk)
    assert [path.name for path in small_disk.iterdir()] == [f".{info.sha256}.lock"]


def test_across_disks(small_disk: Path, tmp_path: Path) -> None:
    """From one file system to another the kernel copies too."""
    source = tmp_path / "w.pt"
    source.write_bytes(os.urandom(9 * MIB + 5))
    with ZipStream(small_disk / "m.mar") as stream:
        stream.add_bytes(archive.MANIFEST, b'{"model": {"modelName": "m", "handler": "h.py"}}')
        stream.add_file("w.pt", source)
        stream.finish()
    unpacked = archive.unpack(archive.open_archive(small_disk / "m.mar"), tmp_path / "cache")
    assert (unpacked / "w.pt").read_bytes() == source.read_bytes()
