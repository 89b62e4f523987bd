"""Checkpoints made by hand, bent in every way that a file can be; torch itself is asked in tests/contract."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import pytest
import torch_files
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_files import Spec

from servekit.errors import ModelError
from servekit.system.archives.zipstream import Piece
from servekit.system.model_files import checkpoint, safetensors_file, weights
from servekit.system.model_files.checkpoint import Checkpoint, StoredTensor

FLOATS = struct.pack("<6f", 0, 1, 2, 3, 4, 5)
ONE: dict[str, Spec] = {"w": ("FloatStorage", "0", 6, 0, [2, 3], [3, 1])}


def content(tensor: StoredTensor) -> bytes:
    if isinstance(tensor.source, bytes):
        return tensor.source
    data = tensor.source.path.read_bytes()
    return data[tensor.source.offset : tensor.source.offset + tensor.source.size]


def saved(tmp_path: Path, specs: dict[str, Spec], **more: bytes) -> Path:
    return torch_files.save_zip(tmp_path / "w.pt", torch_files.state(specs), {"0": FLOATS}, more or None)


def old(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "old.pt"
    path.write_bytes(data)
    return path


def test_a_tensor_is_a_range_of_its_file(tmp_path: Path) -> None:
    specs = {**ONE, "row": ("FloatStorage", "1", 6, 3, [3], [1])}
    path = torch_files.save_zip(tmp_path / "w.pt", torch_files.state(specs), {"0": FLOATS, "1": FLOATS})
    found = checkpoint.read(path)
    assert (found.tensors["w"].dtype, found.tensors["w"].shape) == ("F32", (2, 3))
    assert isinstance(found.tensors["w"].source, Piece)
    assert content(found.tensors["w"]) == FLOATS
    assert content(found.tensors["row"]) == FLOATS[12:]
    legacy = old(tmp_path, torch_files.legacy(torch_files.state(specs), {"0": (6, FLOATS), "1": (6, FLOATS)}))
    assert [content(tensor) for tensor in checkpoint.read(legacy).tensors.values()] == [FLOATS, FLOATS[12:]]


def test_a_transposed_tensor_is_put_in_order(tmp_path: Path) -> None:
    found = checkpoint.read(saved(tmp_path, {"t": ("FloatStorage", "0", 6, 0, [3, 2], [1, 3])}))
    assert found.tensors["t"].source == struct.pack("<6f", 0, 3, 1, 4, 2, 5)


def test_what_is_too_large_to_be_put_in_order_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servekit.system.model_files.checkpoint_tensors._MAX_GATHERED", 23)
    found = checkpoint.read(saved(tmp_path, {"t": ("FloatStorage", "0", 6, 0, [3, 2], [1, 3])}))
    assert found.obstacle == "t is not contiguous and too large to be put in order (24 bytes)"
    assert not found.tensors


def test_an_expanded_tensor_may_not_fill_the_memory(tmp_path: Path) -> None:
    found = checkpoint.read(saved(tmp_path, {"t": ("FloatStorage", "0", 6, 0, [1 << 50, 2], [0, 1])}))
    assert found.obstacle is not None
    assert found.obstacle.startswith("t is not contiguous and too large")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (("FloatStorage", "0", 6, 0, [7], [1]), "w would reach beyond its storage '0'"),
        (("FloatStorage", "0", 6, 4, [3], [1]), "w would reach beyond its storage '0'"),
        (("FloatStorage", "0", 6, 0, [2, 3], [4, 1]), "w would reach beyond its storage '0'"),
        (("FloatStorage", "0", 7, 0, [2], [1]), "w would reach beyond its storage '0'"),
        (("DoubleStorage", "0", 6, 0, [2], [1]), "w would reach beyond its storage '0'"),
        (("FloatStorage", "9", 6, 0, [2], [1]), r"the data of w \(storage '9'\) is missing"),
        (("FloatStorage", "../0", 6, 0, [2], [1]), "is missing"),
    ],
)
def test_a_tensor_beyond_its_data(tmp_path: Path, spec: Spec, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        checkpoint.read(saved(tmp_path, {"w": spec}))


def test_all_that_is_damaged_is_told_at_once(tmp_path: Path) -> None:
    specs = {**ONE, "a": ("FloatStorage", "0", 6, 6, [1], [1]), "b": ("FloatStorage", "7", 6, 0, [1], [1])}
    with pytest.raises(ModelError, match=r"(?s)2 problems:.*a would reach.*b \(storage '7'\) is missing"):
        checkpoint.read(saved(tmp_path, specs))


def test_big_endian_files_are_kept(tmp_path: Path) -> None:
    assert checkpoint.read(saved(tmp_path, ONE, byteorder=b"big")).obstacle == "its numbers are big-endian"
    path = old(tmp_path, torch_files.legacy(torch_files.state(ONE), {"0": (6, FLOATS)}, little=False))
    assert checkpoint.read(path).obstacle == "its numbers are big-endian"


def test_compressed_storages_keep_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path, ONE)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    assert checkpoint.read(path).obstacle == "archive/data/0 is compressed"


def test_a_zip_that_lies_about_a_member(tmp_path: Path) -> None:
    path = saved(tmp_path, ONE)
    data = bytearray(path.read_bytes())
    at = data.index(b"archive/data/0", data.index(b"PK\x01\x02")) - 46
    data[at + 20 : at + 28] = struct.pack("<II", 1 << 20, 1 << 20)
    path.write_bytes(data)
    with pytest.raises(ModelError, match="archive/data/0 would reach beyond its end"):
        checkpoint.read(path)


@pytest.mark.parametrize("names", [("a/data.pkl", "b/data/0"), ("a/b/data.pkl",), ("data.pkl",)])
def test_zips_that_torch_would_read_differently(tmp_path: Path, names: tuple[str, ...]) -> None:
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        for name in names:
            archive.writestr(name, torch_files.state(ONE))
    with pytest.raises(ModelError, match=r"not one of torch\.save"):
        checkpoint.read(tmp_path / "w.pt")


LEGACY = torch_files.legacy(torch_files.state(ONE), {"0": (6, FLOATS)})


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (LEGACY + b"x", "1 bytes follow the last storage"),
        (LEGACY[:-1], "storage '0' would reach beyond its end"),
        (LEGACY[:-30], "storage '0' would reach beyond its end"),
        (LEGACY[:80], "ends in the middle"),
        (torch_files.legacy(torch_files.state(ONE), {"0": (-1, FLOATS)}), "would reach beyond its end"),
        (torch_files.legacy(torch_files.state(ONE), {"9": (6, FLOATS)}), "a storage that no tensor belongs to"),
        (torch_files.legacy(torch_files.state(ONE), {}, keys=b"\x80\x02N."), "the list of its storages is none"),
        (torch_files.legacy(torch_files.state(ONE), {}), r"the data of w \(storage '0'\) is missing"),
        (b"\x80\x02}.", r"is a pickle, but not one of torch\.save"),
        (b"\x80\x02K\x07." * 5, r"is a pickle, but not one of torch\.save"),
    ],
)
def test_damaged_files_of_the_old_format(tmp_path: Path, data: bytes, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        checkpoint.read(old(tmp_path, data))


def test_a_view_of_an_old_storage(tmp_path: Path) -> None:
    """Before torch 0.4 a storage could be a part of another: (key, offset, size)."""
    data = torch_files.state({"w": ("FloatStorage", "0", 6, 0, [2], [1])})
    view = b"(" + torch_files.text("v") + b"K\x04K\x02t"
    changed = data.replace(torch_files.integer(6) + b"tQ", torch_files.integer(6) + view + b"tQ")
    assert changed != data
    found = checkpoint.read(old(tmp_path, torch_files.legacy(changed, {"0": (6, FLOATS)})))
    assert content(found.tensors["w"]) == FLOATS[16:]


def test_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    specs = {"b": ("FloatStorage", "0", 6, 0, [1], [1]), "a": ("FloatStorage", "0", 6, 1, [5], [1])}
    first = checkpoint.safetensors(checkpoint.read(saved(tmp_path, specs)), {})
    second = checkpoint.safetensors(checkpoint.read(saved(tmp_path, dict(reversed(specs.items())))), {})
    assert first[0] == second[0]
    assert isinstance(first[0], bytes)
    assert len(first[0]) % 8 == 0
    header = json.loads(first[0][8:])
    assert header["a"] == {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}
    assert header["b"] == {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}


def test_names_that_become_one(tmp_path: Path) -> None:
    specs = {"b": ("FloatStorage", "0", 6, 0, [1], [1]), "a": ("FloatStorage", "0", 6, 1, [5], [1])}
    with pytest.raises(ModelError, match="would have one name"):
        checkpoint.safetensors(checkpoint.read(saved(tmp_path, specs)), {"b": "a"})


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_names_that_safetensors_cannot_hold(tmp_path: Path, name: str) -> None:
    found = checkpoint.read(saved(tmp_path, {name: ("FloatStorage", "0", 6, 0, [1], [1])}))
    assert found.obstacle is not None
    assert "no text that can be written" in found.obstacle


def tensors_file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        tensors_file({"w": ENTRY}, bytes(7)),
        tensors_file({"w": ENTRY}, bytes(9)),
        tensors_file({"w": {**ENTRY, "shape": [3]}}, bytes(8)),
        tensors_file({"w": {**ENTRY, "dtype": "F33"}}, bytes(8)),
        tensors_file({"w": {**ENTRY, "shape": [-2]}}, bytes(8)),
        tensors_file({"w": {**ENTRY, "data_offsets": [0]}}, bytes(8)),
        tensors_file({"w": ENTRY, "v": ENTRY}, bytes(8)),
        tensors_file({"w": {**ENTRY, "data_offsets": [8, 16]}}, bytes(16)),
        tensors_file(b'{"w":1,"w":2}'),
        tensors_file(b"{" + b'"a":[' * 5000),
        tensors_file([1]),
        tensors_file({"__metadata__": {"servekit.alias.v": "x"}, "w": ENTRY}, bytes(8)),
        tensors_file({"__metadata__": {"a": 1}, "w": ENTRY}, bytes(8)),
        tensors_file({"w": 7}),
    ],
)
def test_damaged_safetensors(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "w.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="no safetensors file, or a damaged one"):
        safetensors_file.read(tmp_path / "w.safetensors")


def test_safetensors_with_types_that_torch_lacks(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F8_E8M0", "shape": [8], "data_offsets": [0, 8]}}
    (tmp_path / "w.safetensors").write_bytes(tensors_file(header, bytes(8)))
    assert checkpoint.read(tmp_path / "w.safetensors").obstacle == "w is F8_E8M0, which torch does not take"


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    for data, told in ((b"", "it starts with b''"), (b"hello", "it starts with b'hello'")):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=told):
            checkpoint.read(path)
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        checkpoint.read(tmp_path / "none")
    with pytest.raises(ModelError, match="cannot be read: Is a directory"):
        checkpoint.read(tmp_path)


def test_folders_are_told_by_their_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a file, and not a folder of save_pretrained"):
        weights.detect(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert weights.detect(tmp_path) == ("huggingface", "a folder with config.json")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert weights.detect(tmp_path) == ("peft", "a folder with adapter_config.json")
    assert weights.describe(tmp_path, "peft") == {"parameters": None, "tensors": None, "dtypes": None}


def test_compiled_packages_are_told_by_their_code(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    recorded = {"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "90", "AOTI_CPU_ISA": ""}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/data/aotinductor/model/x.wrapper.so", b"\x7fELF")
        archive.writestr("m/data/aotinductor/model/x.wrapper_metadata.json", json.dumps(recorded))
        archive.writestr("m/models/model.json", json.dumps({"torch_version": "2.13.0"}))
    assert weights.detect(path)[0] == "aoti"
    with pytest.raises(ModelError, match=r"m/models/model\.json is not laid out"):
        weights.describe(path, "aoti")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data/aotinductor/model/x.wrapper.so", b"\x7fELF")
        archive.writestr("m/data/aotinductor/model/x.wrapper_metadata.json", json.dumps(recorded))
    told = weights.describe(path, "aoti")
    assert (told["device"], told["architecture"], told["torch"]) == ("cuda", "90", None)


def changed(data: bytes) -> st.SearchStrategy[bytes]:
    """A few bytes put elsewhere: damage that keeps most of a file's structure."""
    edits = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=4)

    def apply(places: list[tuple[int, int]]) -> bytes:
        edited = bytearray(data)
        for place, value in places:
            edited[place] = value
        return bytes(edited)

    return edits.map(apply) | st.integers(0, len(data)).map(lambda end: data[:end])


def zip_bytes() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return torch_files.save_zip(Path(folder) / "w.pt", torch_files.state(ONE), {"0": FLOATS}).read_bytes()


ANY = st.one_of(
    st.binary(max_size=300),
    changed(zip_bytes()),
    changed(LEGACY),
    changed(tensors_file({"__metadata__": {"servekit.alias.v": "w"}, "w": ENTRY}, bytes(8))),
    st.binary(max_size=100).map(lambda data: b"\x08\x08\x3a" + bytes([len(data)]) + data),
    st.binary(max_size=200).map(lambda data: struct.pack("<Q", 40) + b"{" + data),
)


@settings(max_examples=1500, deadline=None)
@given(data=ANY)
def test_any_bytes_are_a_checkpoint_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pt"
    path.write_bytes(data)
    try:
        found = checkpoint.read(path)
    except ModelError as error:
        assert error.message
    else:
        assert isinstance(found, Checkpoint)
        for tensor in found.tensors.values():
            assert len(content(tensor)) == tensor.size
    try:
        kind, _ = weights.detect(path)
        weights.describe(path, kind)
    except ModelError as error:
        assert error.message
