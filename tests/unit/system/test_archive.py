"""Archives from anywhere: what is refused, what is unpacked, and that it happens once."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from servekit.errors import ModelError, StorageError
from servekit.system import file_digest, storage
from servekit.system.archives import archive
from servekit.system.archives import cache as archive_cache
from servekit.system.archives import names as archive_names

MODEL = {"modelName": "m", "handler": "h.py", "modelVersion": "2.0"}


def entry(name: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def make(path: Path, members: Mapping[str, str | bytes] | None = None, model: object = MODEL, **how: int) -> Path:
    """A plain archive with a manifest and the given members."""
    texts = {archive.MANIFEST: json.dumps({"runtime": "python", "model": model}), "h.py": "class H: pass\n"}
    with zipfile.ZipFile(path, "w", **how) as out:
        for name, data in {**texts, **(members or {})}.items():
            out.writestr(entry(name), data)
    return path


def ours(path: Path, members: Mapping[str, bytes], **wrong: str) -> Path:
    """An archive with hashes; ``wrong`` replaces the hash of a member by name, dots written as __."""
    all_ = {archive.MANIFEST: json.dumps({"model": MODEL}).encode(), "h.py": b"class H: pass", **members}
    listed = {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in all_.items()}
    for name, sha256 in wrong.items():
        listed[name.replace("__", ".")]["sha256"] = sha256
    return make(path, {**all_, archive.HASHES: json.dumps({"schema": 1, "members": listed})})


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        archive.open_archive(path)
    return caught.value.message


def test_what_an_archive_says(tmp_path: Path) -> None:
    model = {**MODEL, "configFile": "c.yaml"}
    path = make(
        tmp_path / "m.mar", {"c.yaml": "batchSize: 4\nhandler: {kind: image}\n", "sub/": "", "sub/é": "1"}, model
    )
    info = archive.open_archive(path)
    assert (info.name, info.version) == ("m", "2.0")
    assert info.manifest["model"] == model
    assert info.config == {"batchSize": 4, "handler": {"kind": "image"}}
    assert info.members == (archive.MANIFEST, "c.yaml", "h.py", "sub/é")
    assert info.hashes is None
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_foreign_archive_may_say_little(tmp_path: Path) -> None:
    info = archive.open_archive(make(tmp_path / "m.mar", model={"modelName": "m", "handler": "image_classifier"}))
    assert (info.version, info.config) == ("1.0", {})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("../evil", "would land outside"),
        ("a/../../evil", "would land outside"),
        ("/etc/passwd", "would land outside"),
        ("a\\..\\evil", "would land outside"),
        ("..", "would land outside"),
    ],
)
def test_names_that_leave_the_folder(tmp_path: Path, name: str, told: str) -> None:
    told_ = refused(make(tmp_path / "m.mar", {name: "x"}))
    assert told in told_
    assert repr(name) in told_


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_special_files(tmp_path: Path, kind: int) -> None:
    path = make(tmp_path / "m.mar")
    with zipfile.ZipFile(path, "a") as out:
        out.writestr(entry("link", kind | 0o777), "/etc/passwd")
    assert "'link' is a link or a special file." in refused(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice(tmp_path: Path) -> None:
    path = make(tmp_path / "m.mar")
    with zipfile.ZipFile(path, "a") as out:
        out.writestr(entry("h.py"), "other")
    assert "'h.py' is there twice." in refused(path)


def test_encryption(tmp_path: Path) -> None:
    path = make(tmp_path / "m.mar", {"last": "x"})
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert "'last' is encrypted." in refused(path)


def test_a_bomb(tmp_path: Path) -> None:
    """Deflate cannot shrink more than 1032-fold: what claims more lies, or is compressed otherwise."""
    path = make(tmp_path / "m.mar")
    with zipfile.ZipFile(path, "a") as out:
        out.writestr(entry("zeros"), bytes(10_000_000), zipfile.ZIP_LZMA)
    assert "'zeros' expands 10000000 bytes out of almost none." in refused(path)
    make(path)
    with zipfile.ZipFile(path, "a") as out:
        out.writestr(entry("zeros"), bytes(1_000_000), zipfile.ZIP_DEFLATED)
    assert "zeros" in archive.open_archive(path).members, "what deflate really does is no bomb"


def test_all_problems_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.mar"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(entry("../a"), "")
        out.writestr(entry("b", stat.S_IFLNK), "")
    told = refused(path)
    assert told.startswith("3 problems:")


def test_a_zip_without_a_manifest(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as out:
        out.writestr(entry("a"), "")
    assert "it holds no MAR-INF/MANIFEST.json: it is a zip, but not a model archive." in refused(tmp_path / "m.mar")


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"{}", "names no model or no handler"),
        (b'{"model": []}', "names no model or no handler"),
        (b'{"model": {"modelName": "m"}}', "names no model or no handler"),
        (b'{"model": {"modelName": 1, "handler": "h"}}', "names no model or no handler"),
        (b'{"model": {"modelName": "../m", "handler": "h"}}', "cannot be a model name"),
        (b'{"model": {"modelName": "m", "handler": "h", "modelVersion": "a/b"}}', "cannot be a version"),
        (b'{"model": {"modelName": "m", "handler": "h", "configFile": "c"}}', "names c, which is not in the archive"),
    ],
)
def test_manifests(tmp_path: Path, manifest: bytes, told: str) -> None:
    assert told in refused(make(tmp_path / "m.mar", {archive.MANIFEST: manifest}))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (b"a: [", "is not YAML"),
        (b"\xff\xfe\xff", "is not YAML"),
        (b"!!python/object/apply:os.system ['touch /tmp/x']", "is not YAML"),
        (b"[" * 20_000, "is not YAML"),
        (b"- a", "is not a YAML mapping"),
    ],
)
def test_configurations(tmp_path: Path, config: bytes, told: str) -> None:
    assert told in refused(make(tmp_path / "m.mar", {"c": config}, {**MODEL, "configFile": "c"}))


def test_an_empty_configuration_is_none(tmp_path: Path) -> None:
    assert archive.open_archive(make(tmp_path / "m.mar", {"c": ""}, {**MODEL, "configFile": "c"})).config == {}


def test_a_text_of_any_length_is_not_read(tmp_path: Path) -> None:
    path = make(tmp_path / "m.mar", {archive.MANIFEST: b" " * (1024 * 1024 + 1)})
    assert "MANIFEST.json is larger than 1 MiB" in refused(path)
    path = make(tmp_path / "m.mar", {"c": b" " * (256 * 1024 + 1)}, {**MODEL, "configFile": "c"})
    assert "c is larger than 262144 bytes" in refused(path)


@pytest.mark.parametrize("hashes", ["{}", '{"members": []}', '{"members": {"a": {}}}', '{"members": {"a": 1}}'])
def test_hashes_that_are_none(tmp_path: Path, hashes: str) -> None:
    assert "lists no hashes" in refused(make(tmp_path / "m.mar", {archive.HASHES: hashes}))


def test_what_is_no_zip(tmp_path: Path) -> None:
    path = tmp_path / "m.mar"
    for content, told in (
        (b"", "is empty"),
        (b"hello", "it is not an archive: it is no zip, no tar.gz and no folder."),
        (b"PK\x03\x04" + bytes(100), "is truncated"),
    ):
        path.write_bytes(content)
        assert told in refused(path)
    assert "cannot be read" in refused(tmp_path / "nothing.mar")
    assert "it holds no MAR-INF/MANIFEST.json: it is a folder, but not a model archive" in refused(tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_cut_off_anywhere(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "m.mar"
    make(path, {"w": bytes(range(256)) * 20}, compression=compression)
    whole = path.read_bytes()
    for length in random.Random(0).sample(range(len(whole)), 20):
        path.write_bytes(whole[:length])
        assert str(path) in refused(path)


def test_bytes_turned_anywhere_end_in_our_errors_or_the_same_files(tmp_path: Path) -> None:
    """A hundred single-byte changes of a deflated foreign archive: never an exception that is not ours."""
    path = make(
        tmp_path / "m.mar", {"c": "batchSize: 4\n" * 9, "w": bytes(range(256)) * 4}, {**MODEL, "configFile": "c"}
    )
    with zipfile.ZipFile(path) as old:
        kept = {info.filename: old.read(info) for info in old.infolist()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in kept.items():
            out.writestr(name, data)
    whole, rng = buffer.getvalue(), random.Random(1)
    for _ in range(100):
        broken = bytearray(whole)
        broken[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        try:
            folder = archive.unpack(archive.open_archive(path), tmp_path / "cache")
        except (ModelError, StorageError):
            continue
        for member in folder.rglob("w"):
            assert member.read_bytes() == kept["w"]


def test_unpacked_once_read_only_and_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ours(tmp_path / "m.mar", {"h.py": b"class H: pass\n", "sub/w.pt": b"weights"})
    info = archive.open_archive(path)
    folder = archive.unpack(info, tmp_path / "cache")
    assert folder == tmp_path / "cache" / info.sha256
    assert (folder / "sub" / "w.pt").read_bytes() == b"weights"
    assert (folder / "sub" / "w.pt").stat().st_mode & 0o777 == 0o444
    monkeypatch.setattr(archive_cache, "extract", lambda *_: pytest.fail("unpacked a second time"))
    assert archive.unpack(info, tmp_path / "cache") == folder
    shutil.copy(path, tmp_path / "copy.mar")
    assert archive.unpack(archive.open_archive(tmp_path / "copy.mar"), tmp_path / "cache") == folder


@pytest.mark.parametrize("damage", ["changed", "removed", "stamp"])
def test_a_damaged_copy_is_made_anew(tmp_path: Path, damage: str) -> None:
    info = archive.open_archive(ours(tmp_path / "m.mar", {"w.pt": b"weights"}))
    folder = archive.unpack(info, tmp_path / "cache")
    if damage == "changed":
        (folder / "w.pt").chmod(0o644)
        (folder / "w.pt").write_bytes(b"veights")
    elif damage == "removed":
        (folder / "w.pt").unlink()
    else:
        (folder / archive_names.STAMP).write_text("{")
    assert (archive.unpack(info, tmp_path / "cache") / "w.pt").read_bytes() == b"weights"


def test_contents_that_are_not_what_was_packaged(tmp_path: Path) -> None:
    info = archive.open_archive(ours(tmp_path / "m.mar", {"w.pt": b"weights"}, w__pt="0" * 64))
    with pytest.raises(ModelError, match=r"w\.pt is not what was packaged"):
        archive.unpack(info, tmp_path / "cache")
    assert left(tmp_path) == []


def test_a_member_without_a_hash_was_added_later(tmp_path: Path) -> None:
    path = ours(tmp_path / "m.mar", {"w.pt": b"weights"})
    with zipfile.ZipFile(path, "a") as out:
        out.writestr(entry("extra.py"), "import os")
    assert "extra.py is not what was packaged: MAR-INF/servekit.json does not list it." in refused(path)


def test_a_listed_member_that_is_missing_and_one_of_another_size(tmp_path: Path) -> None:
    listed = {
        name: {"sha256": "0" * 64, "size": size} for name, size in ((archive.MANIFEST, 79), ("h.py", 1), ("gone.pt", 7))
    }
    path = make(tmp_path / "m.mar", {archive.HASHES: json.dumps({"members": listed})})
    told = refused(path)
    assert "gone.pt is missing: MAR-INF/servekit.json lists it." in told
    assert "h.py is not what was packaged (it has 14 bytes and had 1)." in told


def test_an_archive_replaced_between_the_check_and_the_unpacking(tmp_path: Path) -> None:
    path = make(tmp_path / "m.mar", {"w": "one"})
    info = archive.open_archive(path)
    make(path, {"w": "two"})
    with pytest.raises(ModelError, match="it changed after it was checked"):
        archive.unpack(info, tmp_path / "cache")
    with pytest.raises(ModelError, match="it changed after it was checked"):
        archive.read_member(info, "w", 10)
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        archive.unpack(info, tmp_path / "cache")
    assert left(tmp_path) == []


def test_an_archive_written_to_while_it_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "m.mar")
    real = file_digest.sha256

    def slow(file: Path, memory: Path | None = None) -> str:
        digest = real(file, memory)
        file.write_bytes(file.read_bytes())
        return digest

    monkeypatch.setattr(file_digest, "sha256", slow)
    assert "it changed while it was read" in refused(path)


def test_requirements_are_named_and_not_installed(tmp_path: Path) -> None:
    model = {**MODEL, "requirementsFile": "requirements.txt"}
    path = make(tmp_path / "m.mar", {"requirements.txt": "-e git+https://example.org/evil\n"}, model)
    info = archive.open_archive(path)  # subprocesses are refused in here
    assert info.manifest["model"]["requirementsFile"] == "requirements.txt"
    assert (archive.unpack(info, tmp_path / "cache") / "requirements.txt").is_file()


def test_one_member_is_read(tmp_path: Path) -> None:
    info = archive.open_archive(make(tmp_path / "m.mar", {"LICENSE": "free"}))
    assert info.member_sizes == {archive.MANIFEST: 92, "h.py": 14, "LICENSE": 4}
    assert archive.read_member(info, "LICENSE", 4) == b"free"
    with pytest.raises(ModelError, match=r"LICENSE is larger than 3 bytes"):
        archive.read_member(info, "LICENSE", 3)
    with pytest.raises(ModelError, match=r"holds no COPYING"):
        archive.read_member(info, "COPYING", 3)


def test_of_very_many_problems_only_the_first_are_told(tmp_path: Path) -> None:
    told = refused(make(tmp_path / "m.mar", {f"../{number}": "" for number in range(50)}))
    assert told.startswith("50 problems:")
    assert told.count("\n") == 21
    assert told.endswith("and 30 more")


def test_an_interruption_leaves_nothing_that_looks_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = archive.open_archive(ours(tmp_path / "m.mar", {"a": b"1", "b": b"2"}))
    real = archive_cache._write

    def interrupted(blocks: Iterator[bytes], target: Path) -> str:
        if target.name == "b":
            raise KeyboardInterrupt
        return real(blocks, target)

    monkeypatch.setattr(archive_cache, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        archive.unpack(info, tmp_path / "cache")
    assert left(tmp_path) == []


def test_remains_of_a_killed_unpacking_are_cleared(tmp_path: Path) -> None:
    info = archive.open_archive(ours(tmp_path / "m.mar", {"a": b"1"}))
    stale = tmp_path / "cache" / f".{info.sha256}.0123.partial"
    stale.mkdir(parents=True)
    (stale / "a").touch()
    archive.unpack(info, tmp_path / "cache")
    assert left(tmp_path) == [info.sha256]


def test_a_file_where_a_folder_must_be(tmp_path: Path) -> None:
    assert "the member 'a' is both a file and a folder" in refused(make(tmp_path / "m.mar", {"a": "1", "a/b": "2"}))


def test_members_that_share_their_bytes(tmp_path: Path) -> None:
    """The shape of a bomb that needs no deep compression: many lines of the directory, one member."""
    path = make(tmp_path / "m.mar", {"big1": bytes(1000)})
    with zipfile.ZipFile(path, "a") as out:
        first = out.getinfo("big1")
        for number in range(2, 10):
            twin = entry(f"big{number}")
            twin.header_offset, twin.CRC = first.header_offset, first.CRC
            twin.file_size = twin.compress_size = first.file_size
            out.filelist.append(twin)
            out.NameToInfo[twin.filename] = twin
        out._didModify = True
    assert "its members overlap" in refused(path)


def test_no_room_to_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = archive.open_archive(make(tmp_path / "m.mar", {"w": bytes(3 << 20)}))
    monkeypatch.setattr(storage, "free_bytes", lambda _: 1 << 20)
    with pytest.raises(StorageError, match=r"the disk is full \(4 MiB needed, 1 MiB free\)"):
        archive.unpack(info, tmp_path / "cache")
    assert left(tmp_path) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    info = archive.open_archive(make(tmp_path / "m.mar"))
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError, match=r"cache.* cannot be written"):
        archive.unpack(info, tmp_path / "cache")


def left(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "cache").iterdir() if not path.name.endswith(".lock"))
