"""Our zip writer, read back by the standard library's reader."""

from __future__ import annotations

import errno
import hashlib
import os
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servekit.errors import ModelError
from servekit.system.archives import zip_records, zipstream
from servekit.system.archives.zipstream import Written, ZipStream

GIB = 1 << 30


def write(target: Path, members: dict[str, bytes]) -> int:
    with ZipStream(target) as stream:
        for name, data in members.items():
            stream.add_bytes(name, data)
        return stream.finish()


def test_read_back(tmp_path: Path) -> None:
    source = tmp_path / "w.pt"
    source.write_bytes(os.urandom(100_000))
    target = tmp_path / "a.mar"
    with ZipStream(target) as stream:
        first = stream.add_bytes("MAR-INF/é-模型.json", b"{}")
        second = stream.add_file("w.pt", source)
        third = stream.add_bytes("empty", b"")
        size = stream.finish()
    assert first == Written("MAR-INF/é-模型.json", 2, hashlib.sha256(b"{}").hexdigest())
    assert second == Written("w.pt", 100_000, hashlib.sha256(source.read_bytes()).hexdigest())
    assert third.size == 0
    assert size == target.stat().st_size
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["MAR-INF/é-模型.json", "w.pt", "empty"]
        assert archive.read("w.pt") == source.read_bytes()
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mar", "w.pt"]


def test_an_empty_file_and_no_member_at_all(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    with ZipStream(tmp_path / "a.mar") as stream:
        assert stream.add_file("none", tmp_path / "none").sha256 == hashlib.sha256().hexdigest()
        stream.finish()
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert archive.read("none") == b""
    write(tmp_path / "b.mar", {})
    assert zipfile.ZipFile(tmp_path / "b.mar").namelist() == []


@pytest.mark.parametrize("size", [1, 15, 16, 17, 32, 33, 100])
def test_files_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(zipstream, "CHUNK", 16)
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    with ZipStream(tmp_path / "a.mar") as stream:
        written = stream.add_file("f", tmp_path / "f")
        stream.finish()
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert archive.read("f") == data


def test_chunks_are_hashed_in_order_and_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        """SHA-256 whose every other update looks at its bytes late, when others could have overtaken it."""

        def __init__(self) -> None:
            self.digest, self.late = hashlib.new("sha256"), True

        def update(self, part: memoryview) -> None:
            late, self.late = self.late, not self.late
            time.sleep(0.03 if late else 0)
            self.digest.update(part)

        def hexdigest(self) -> str:
            return self.digest.hexdigest()

    data = os.urandom(100)
    (tmp_path / "f").write_bytes(data)
    monkeypatch.setattr(zipstream, "CHUNK", 16)
    monkeypatch.setattr(zipstream.hashlib, "sha256", Slow)
    with ZipStream(tmp_path / "a.mar") as stream:
        assert stream.add_file("f", tmp_path / "f").sha256 == hashlib.new("sha256", data).hexdigest()


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    members = {"a": b"1", "b/ü": b"2"}
    write(tmp_path / "one.mar", members)
    write(tmp_path / "two.mar", members)
    assert (tmp_path / "one.mar").read_bytes() == (tmp_path / "two.mar").read_bytes()


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=12)
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=300), max_size=8)


@settings(deadline=None, max_examples=60)
@given(TREES)
def test_any_tree(tree: dict[str, bytes]) -> None:
    with TemporaryDirectory() as folder:
        target = Path(folder) / "a.mar"
        source = Path(folder) / "source"
        with ZipStream(target) as stream:
            for number, (name, data) in enumerate(tree.items()):
                if number % 2:
                    stream.add_bytes(name, data)
                else:
                    source.write_bytes(data)
                    stream.add_file(name, source)
            stream.finish()
        with zipfile.ZipFile(target) as archive:
            assert archive.testzip() is None
            assert {name: archive.read(name) for name in archive.namelist()} == tree


def test_offsets_beyond_four_gib(tmp_path: Path) -> None:
    """The archive itself gets a hole: on disk it stays small."""
    with ZipStream(tmp_path / "a.mar") as stream:
        stream.add_bytes("first", b"1")
        os.lseek(stream._file, 5 * GIB, os.SEEK_SET)
        stream.add_bytes("second", b"22")
        assert stream.finish() > 5 * GIB
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert archive.testzip() is None
        assert archive.getinfo("second").header_offset == 5 * GIB
        assert (archive.read("first"), archive.read("second")) == (b"1", b"22")


def test_a_member_beyond_four_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "w"
    with source.open("wb") as file:
        file.truncate(4 * GIB + 7)

    def skip(self: ZipStream, _source: int, _most: int, _sums: object) -> int:
        os.lseek(self._file, 4 * GIB + 7, os.SEEK_CUR)  # zeros, as the source's, without copying them
        return 4 * GIB + 7

    monkeypatch.setattr(ZipStream, "_copy", skip)
    monkeypatch.setattr(zipstream._Sums, "finish", lambda self: (0x12345678, "hash"))
    with ZipStream(tmp_path / "a.mar") as stream:
        stream.add_file("big", source)
        stream.add_bytes("after", b"!")
        stream.finish()
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        info = archive.getinfo("big")
        assert (info.file_size, info.compress_size, info.CRC) == (4 * GIB + 7, 4 * GIB + 7, 0x12345678)
        assert archive.read("after") == b"!"
        with archive.open("big") as member:
            assert member.read(10) == bytes(10), "the local header is read too"


def test_more_members_than_sixteen_bits_count(tmp_path: Path) -> None:
    write(tmp_path / "a.mar", {f"{number}": b"" for number in range(65_537)})
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert len(archive.namelist()) == 65_537


@pytest.mark.parametrize("change", ["shrinks", "grows"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(zipstream, "CHUNK", 16)
    source, target = tmp_path / "w", tmp_path / "a.mar"
    source.write_bytes(bytes(100))
    target.write_bytes(b"the archive before")
    real = ZipStream._send
    calls: list[int] = []

    def meanwhile(self: ZipStream, descriptor: int, most: int) -> int:
        calls.append(most)
        if len(calls) == 3:
            os.truncate(source, 40 if change == "shrinks" else 10**6)
        assert len(calls) < 20, "a file that grows must not be followed for ever"
        return real(self, descriptor, most)

    monkeypatch.setattr(ZipStream, "_send", meanwhile)
    with pytest.raises(ModelError, match="changed while it was read"), ZipStream(target) as stream:
        stream.add_file("w", source)
    assert target.read_bytes() == b"the archive before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mar", "w"]


@pytest.mark.parametrize("source", ["nothing", ".", "pipe"])
def test_a_source_that_cannot_be_read_is_not_the_targets_fault(tmp_path: Path, source: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match=f"{tmp_path}.* cannot be read"), ZipStream(tmp_path / "a.mar") as stream:
        stream.add_file("w", tmp_path / source)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("moment", range(7))
def test_an_interruption_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Before each of its seven steps: a header, five chunks (the last is the end), the directory."""
    (tmp_path / "w").write_bytes(bytes(64))
    monkeypatch.setattr(zipstream, "CHUNK", 16)
    calls: list[str] = []

    def interrupting(method: str) -> None:
        real = getattr(ZipStream, method)

        def step(self: ZipStream, *arguments: object) -> object:
            if len(calls) == moment:
                raise KeyboardInterrupt
            calls.append(method)
            return real(self, *arguments)

        monkeypatch.setattr(ZipStream, method, step)

    interrupting("_send")
    interrupting("_write")
    with pytest.raises(KeyboardInterrupt), ZipStream(tmp_path / "a.mar") as stream:
        stream.add_file("w", tmp_path / "w")
        stream.finish()
    assert len(calls) == moment
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_the_kernel_cannot_copy_we_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, "cannot splice")

    monkeypatch.setattr(os, "sendfile", refuse)
    monkeypatch.setattr(zipstream, "CHUNK", 16)
    data = os.urandom(100)
    (tmp_path / "w").write_bytes(data)
    with ZipStream(tmp_path / "a.mar") as stream:
        assert stream.add_file("w", tmp_path / "w").sha256 == hashlib.sha256(data).hexdigest()
        stream.finish()
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert archive.read("w") == data


def test_a_full_disk_is_not_taken_for_a_kernel_that_cannot_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "w").write_bytes(b"1")
    monkeypatch.setattr(os, "sendfile", full)
    with pytest.raises(OSError, match="No space left"), ZipStream(tmp_path / "a.mar") as stream:
        stream.add_file("w", tmp_path / "w")
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


@pytest.mark.parametrize("before", [0, 1, 4000, 4050, 4095])
def test_large_members_begin_on_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    monkeypatch.setattr(zip_records, "_LARGE", 1000)
    data = os.urandom(1000)
    (tmp_path / "w").write_bytes(data)
    with ZipStream(tmp_path / "a.mar") as stream:
        stream.add_bytes("first", bytes(before))
        stream.add_file("w", tmp_path / "w")
        stream.finish()
    whole = (tmp_path / "a.mar").read_bytes()
    assert whole.index(data) % 4096 == 0
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert archive.testzip() is None
        assert archive.read("w") == data


def test_without_finish_there_is_no_archive(tmp_path: Path) -> None:
    with ZipStream(tmp_path / "a.mar") as stream:
        stream.add_bytes("a", b"1")
    assert list(tmp_path.iterdir()) == []


def test_remains_of_a_killed_writer_are_removed_those_of_a_live_one_stay(tmp_path: Path) -> None:
    dead, other = tmp_path / ".a.mar.0123abcd.partial", tmp_path / ".b.mar.0123abcd.partial"
    dead.touch()
    other.touch()
    with ZipStream(tmp_path / "a.mar") as live:
        live.add_bytes("a", b"1")
        write(tmp_path / "a.mar", {})
        assert not dead.exists()
        assert other.exists()
        live.finish()
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert archive.namelist() == ["a"], "the last to finish stands"


def test_readable_by_a_containers_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write(tmp_path / "a.mar", {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.mar").stat().st_mode & 0o777 == 0o644
