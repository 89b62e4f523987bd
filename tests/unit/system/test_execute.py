"""Carrying out a plan: files and folders. Processes are in tests/contract/test_process_stop.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from servekit.domain.plan import Link, MakeFolder, Plan, WriteFile
from servekit.errors import StorageError
from servekit.system import execute


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_folders_and_links(tmp_path: Path) -> None:
    home = tmp_path / "a" / "b"
    steps = (
        MakeFolder(home),
        WriteFile(home / "secret", "é\n"),
        WriteFile(home / "open", "1", 0o644),
        Link(home / "link", "/not/there"),
        MakeFolder(home / "wide", 0o755),
    )
    before = os.umask(0o077)
    try:
        execute.run(Plan(steps))
    finally:
        os.umask(before)
    assert (home / "secret").read_bytes() == "é\n".encode()
    assert (mode(home), mode(home / "secret"), mode(home / "open"), mode(home / "wide")) == (0o700, 0o600, 0o644, 0o755)
    assert os.readlink(home / "link") == "/not/there"
    assert sorted(path.name for path in home.iterdir()) == ["link", "open", "secret", "wide"]


def test_an_existing_folder_is_narrowed(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir(mode=0o777)
    execute.run(Plan((MakeFolder(tmp_path / "f"),)))
    assert mode(tmp_path / "f") == 0o700


def test_a_scratch_folder_that_somebody_else_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageError, match="belongs to another user"):
        execute.run(Plan((MakeFolder(tmp_path / "link"),)))
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    with pytest.raises(StorageError, match="belongs to another user"):
        execute.run(Plan((MakeFolder(tmp_path / "theirs"),)))


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"/file/\.x\.tmp: Not a directory"):
        execute.run(Plan((WriteFile(tmp_path / "file" / "x", ""),)))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        execute.run(Plan((WriteFile(path, "half \ud800"),)))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_removal_never_follows_links(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "w").touch()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "model").symlink_to(tmp_path / "cache")
    execute.remove(tmp_path / "home", tmp_path / "never-there")
    assert not (tmp_path / "home").exists()
    assert (tmp_path / "cache" / "w").exists()
