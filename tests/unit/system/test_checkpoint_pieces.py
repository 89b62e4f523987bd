"""Members put together from ranges of files: the same sums as a file's, and no change goes unnoticed."""

from __future__ import annotations

import errno
import hashlib
import os
import zipfile
from pathlib import Path

import pytest
import torch_files

from servekit.errors import ModelError
from servekit.system.archives import zipstream
from servekit.system.archives.zipstream import Piece, Pieces, Written, ZipStream, stamp
from servekit.system.model_files import checkpoint


def packed(tmp_path: Path, pieces: Pieces) -> tuple[Written, bytes]:
    with ZipStream(tmp_path / "a.mar") as stream:
        stream.add_bytes("before", b"1")
        written = stream.add_pieces("w", pieces)
        stream.add_bytes("after", b"2")
        stream.finish()
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert archive.testzip() is None
        assert (archive.read("before"), archive.read("after")) == (b"1", b"2")
        return written, archive.read("w")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "w.pt"
    path.write_bytes(os.urandom(3_000_000))
    return path


def test_pieces_of_two_files_and_of_memory(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipstream, "CHUNK", 65_536)
    other = tmp_path / "other"
    other.write_bytes(b"0123456789")
    data = source.read_bytes()
    pieces: Pieces = (
        b"header",
        Piece(source, 1_000_001, 1_500_000, stamp(source)),
        Piece(other, 3, 4),
        b"",
        Piece(source, 0, 7),
        Piece(source, 5, 0),
        Piece(source, 2_999_999, 1),
    )
    expected = b"header" + data[1_000_001:2_500_001] + b"3456" + data[:7] + data[-1:]
    written, content = packed(tmp_path, pieces)
    assert content == expected
    assert written == Written("w", len(expected), hashlib.sha256(expected).hexdigest())
    assert packed(tmp_path, ())[0] == Written("w", 0, hashlib.sha256().hexdigest())


def test_where_the_kernel_cannot_copy(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "cannot splice")

    monkeypatch.setattr(os, "sendfile", refuse)
    assert packed(tmp_path, (Piece(source, 10, 2_000_000),))[1] == source.read_bytes()[10:2_000_010]


def test_a_piece_beyond_the_end(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ModelError, match="changed while it was read: it ends before byte 3000001"):
        packed(tmp_path, (Piece(source, 2_999_990, 11),))
    with pytest.raises(ModelError, match="changed while it was read: it ends before byte 3000002"):
        packed(tmp_path, (Piece(source, 1, 3_000_001),))
    assert not (tmp_path / "a.mar").exists()


def test_another_file_than_the_one_looked_at(tmp_path: Path, source: Path) -> None:
    before = stamp(source)
    source.write_bytes(bytes(3_000_000))
    os.utime(source, ns=(before[1] + 1, before[1] + 1))
    with pytest.raises(ModelError, match="it is another than the one that was looked at"):
        packed(tmp_path, (Piece(source, 0, 10, before),))


def test_a_file_that_changes_meanwhile(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ZipStream._send

    def meanwhile(self: ZipStream, descriptor: int, most: int) -> int:
        status = source.stat()
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        return real(self, descriptor, most)

    monkeypatch.setattr(ZipStream, "_send", meanwhile)
    with pytest.raises(ModelError, match="its size or its time of modification is another"):
        packed(tmp_path, (Piece(source, 0, 1_000_000),))


def test_a_checkpoint_into_an_archive(tmp_path: Path) -> None:
    specs = {"module.w": ("LongStorage", "0", 2, 0, [2], [1]), "module.v": ("LongStorage", "0", 2, 0, [2], [1])}
    path = torch_files.save_zip(tmp_path / "w.pt", torch_files.state(specs), {"0": bytes(range(16))})
    found = checkpoint.read(path)
    _, content = packed(tmp_path, checkpoint.safetensors(found, {"module.w": "w", "module.v": "v"}))
    (tmp_path / "w.safetensors").write_bytes(content)
    again = checkpoint.read(tmp_path / "w.safetensors")
    assert (list(again.tensors), again.aliases) == (["w"], {"v": "w"})
    assert content.endswith(bytes(range(16)))
