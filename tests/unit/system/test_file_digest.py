"""The remembered SHA-256: right whatever happened to the file, and read only once when nothing did."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from servekit.system import file_digest


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for answers, and files that count as settled at once."""
    monkeypatch.setattr(file_digest, "_SETTLED_NS", -1)
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.mar"
    path.write_bytes(b"one")
    return path


def expected(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_read_once(file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_digest.sha256(file, memory) == expected(file)
    monkeypatch.setattr(file_digest.hashlib, "sha256", None)
    assert file_digest.sha256(file, memory) == hashlib.new("sha256", b"one").hexdigest()
    assert len(list(memory.iterdir())) == 1, "no temporary file stays"


@pytest.mark.parametrize("how", ["rewritten", "replaced", "longer"])
def test_a_changed_file_is_read_again(file: Path, memory: Path, how: str) -> None:
    file_digest.sha256(file, memory)
    dates = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    if how == "replaced":
        other = file.with_name("other")
        other.write_bytes(b"two")
        other.replace(file)
    else:
        file.write_bytes(b"two" if how == "rewritten" else b"longer")
    os.utime(file, ns=dates)  # put back by hand: the time of change tells all the same
    assert file_digest.sha256(file, memory) == expected(file)


def test_a_file_just_written_is_not_remembered(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    assert file_digest.sha256(file, folder) == expected(file)
    assert list(folder.iterdir()) == []


def test_nonsense_in_the_memory_is_not_believed(file: Path, memory: Path) -> None:
    file_digest.sha256(file, memory)
    (note,) = memory.iterdir()
    note.write_text("no hash")
    assert file_digest.sha256(file, memory) == expected(file)


def test_a_memory_that_does_not_exist_is_not_made(file: Path, memory: Path) -> None:
    shutil.rmtree(memory)
    assert file_digest.sha256(file, memory) == file_digest.sha256(file) == expected(file)
    assert not memory.exists()


def test_larger_than_its_buffer(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest, "_CHUNK", 16)
    file.write_bytes(os.urandom(100))
    assert file_digest.sha256(file) == expected(file)
