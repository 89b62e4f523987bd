"""Our reader of safetensors against the library that writes them, and against damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from servekit_worker import weights
from servekit_worker.engines import safetensors
from servekit_worker.errors import SetupError

library = pytest.importorskip("safetensors.torch")

DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
]


def content(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_that_torch_has_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    raw = torch.arange(48, dtype=torch.uint8).reshape(2, 24)
    written = (raw % 2 == 1) if name == "bool" else raw.view(dtype)
    library.save_file({"x": written, "y": written[:1].clone()}, tmp_path / "w.safetensors")
    found = safetensors.read(tmp_path / "w.safetensors")
    for key, expected in {"x": written, "y": written[:1]}.items():
        assert (found[key].dtype, found[key].shape) == (dtype, expected.shape)
        assert torch.equal(found[key].view(torch.uint8), expected.contiguous().view(torch.uint8))


def test_scalars_empty_tensors_and_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    library.save_file({"one": torch.tensor(2.5), "none": torch.empty(0, 3), "z": torch.ones(2)}, path)
    found = safetensors.read(path)
    assert (found["one"].item(), list(found["none"].shape), found["z"].tolist()) == (2.5, [0, 3], [1.0, 1.0])
    library.save_file({}, path, metadata={"format": "pt"})
    assert safetensors.read(path) == {}


def test_tensors_lie_in_one_map_of_the_file_which_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    library.save_file({"a": torch.ones(4), "b": torch.zeros(4)}, path)
    before = path.read_bytes()
    found = safetensors.read(path)
    assert found["b"].data_ptr() - found["a"].data_ptr() == 16
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    assert any(
        int(line.split("-")[0], 16) <= found["a"].data_ptr() < int(line.split()[0].split("-")[1], 16) for line in lines
    )
    found["a"].fill_(7.0)
    assert path.read_bytes() == before


def test_a_tensor_off_its_alignment_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    header = {"a": tensor("U8", [1], [0, 1]), "b": tensor("F32", [2], [1, 9])}
    path.write_bytes(content(header, b"\x05" + torch.tensor([1.5, -2.0]).numpy().tobytes()))
    found = safetensors.read(path)
    assert (found["a"].tolist(), found["b"].tolist()) == ([5], [1.5, -2.0])
    assert found["b"].data_ptr() % 4 == 0


HUGE = 10**30
BAD: dict[str, tuple[bytes, str]] = {
    "three bytes": (b"abc", "it has 3 bytes, fewer than the 8"),
    "header longer than the file": (content({}, length=999), "its header is said to have 999 bytes, and the file has"),
    "header over the limit": (content({}, length=2**40), "more than 100000000"),
    "header of no bytes": (content(b""), "said to have 0 bytes"),
    "header that is a list": (content(b"[1, 2]"), "does not begin with {"),
    "header cut short": (content(b'{"a": {"dtype"'), "its header is not JSON"),
    "header not UTF-8": (content(b'{"\xff\xfe": 1}'), "its header is not JSON"),
    "header nested too deep": (content(b'{"a":' + b"[" * 200_000), "its header is not JSON"),
    "a name twice": (content(b'{"a": 1, "a": 2}'), "'a' appears twice"),
    "an entry that is a number": (content({"a": 1}), "a is not described by dtype, shape and data_offsets"),
    "no dtype": (content({"a": {"shape": [], "data_offsets": [0, 0]}}), "a is not described"),
    "a dtype of another torch": (content({"a": tensor("F6_E2M3")}, bytes(8)), "a has dtype 'F6_E2M3', which torch"),
    "a dtype that is a list": (content({"a": tensor(["F32"])}, bytes(8)), "a has dtype ['F32']"),
    "a negative size": (content({"a": tensor(shape=[-2])}, bytes(8)), "a has shape [-2]"),
    "a size that is true": (content({"a": tensor(shape=[True, 2])}, bytes(8)), "a has shape [True, 2]"),
    "three offsets": (content({"a": tensor(offsets=[0, 4, 8])}, bytes(8)), "a has data_offsets [0, 4, 8]"),
    "offsets backwards": (content({"a": tensor(offsets=[8, 0])}, bytes(8)), "a has data_offsets [8, 0]"),
    "a shape larger than its bytes": (
        content({"a": tensor(shape=[3])}, bytes(8)),
        "a is F32 [3], 12 bytes, but its data_offsets hold 8",
    ),
    "a shape that would overflow": (
        content({"a": tensor(shape=[HUGE, HUGE])}, bytes(8)),
        f"{4 * HUGE * HUGE} bytes, but its data_offsets hold 8",
    ),
    "half a byte": (content({"a": tensor("F4", [3], [0, 1])}, bytes(1)), "its last axis must be a multiple of 2"),
    "overlap": (
        content({"a": tensor(), "b": tensor(offsets=[4, 12])}, bytes(12)),
        "b overlaps the tensor before it",
    ),
    "a gap": (content({"a": tensor(offsets=[8, 16])}, bytes(16)), "a leaves a gap of 8 bytes before it"),
    "cut off": (content({"a": tensor()}, bytes(7)), "the tensors take 8 bytes and the file has 7"),
    "something behind": (content({"a": tensor()}, bytes(9)), "the tensors take 8 bytes and the file has 9"),
    "metadata of numbers": (content({"__metadata__": {"a": 1}}), "__metadata__ is not a mapping of texts"),
    "an alias of nothing": (
        content({"__metadata__": {"servekit.alias.b": "c"}, "a": tensor()}, bytes(8)),
        "b is to be the same as c, which the file lacks",
    ),
    "an alias of a tensor that is there": (
        content({"__metadata__": {"servekit.alias.a": "a"}, "a": tensor()}, bytes(8)),
        "a is to be the same as a, which the file holds twice",
    ),
}


@pytest.mark.parametrize(("raw", "told"), BAD.values(), ids=BAD)
def test_damaged_files_are_refused_with_the_reason(tmp_path: Path, raw: bytes, told: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(raw)
    with pytest.raises(SetupError, match=r"weights w\.safetensors: not a sound safetensors file: ") as caught:
        safetensors.read(path)
    assert told in str(caught.value)
    if "servekit.alias" not in str(raw):
        with pytest.raises(Exception, match=r".+"):
            library.load_file(path)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content({name: tensor(shape=[int(name)]) for name in "3456789"}, bytes(8)))
    with pytest.raises(SetupError) as caught:
        safetensors.read(path)
    assert "3 is F32 [3]" in str(caught.value)
    assert "7 is F32 [7]" in str(caught.value)
    assert "; and 2 more" in str(caught.value)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(3, 2)
        self.head = torch.nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_stored_once_and_stay_one_parameter(tmp_path: Path) -> None:
    path, values = tmp_path / "w.safetensors", torch.arange(6.0).reshape(3, 2)
    library.save_file({"embed.weight": values}, path, metadata={"servekit.alias.head.weight": "embed.weight"})
    state = safetensors.read(path)
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    model = Tied()
    weights.fill(model, state, path.name)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, values)
    assert model.head.weight.data_ptr() == state["embed.weight"].data_ptr(), "mapped, not copied"
    model.to(torch.float64)
    assert model.head.weight is model.embed.weight, "a move copies it once"


def test_weights_of_equal_values_are_not_tied() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)])
    weights.fill(model, {"0.weight": torch.ones(2, 2), "1.weight": torch.ones(2, 2)}, "w")
    assert model[0].weight is not model[1].weight
