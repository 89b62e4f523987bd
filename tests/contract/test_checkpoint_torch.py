"""torch writes and reads, we read and write in between without it: what comes out is what went in, bit by bit."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from servekit.errors import ModelError
from servekit.system.archives.zipstream import ZipStream
from servekit.system.model_files import checkpoint, pickles, weights
from servekit.system.model_files.checkpoint import Checkpoint

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc(x))


@pytest.fixture(params=["zip", "legacy"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """torch.save in both of its formats, to a file whose path comes back."""

    def write(value: Any) -> Path:
        path = tmp_path / "w.pt"
        torch.save(value, path, _use_new_zipfile_serialization=request.param == "zip")
        return path

    return write


def written(found: Checkpoint, folder: Path, rename: dict[str, str] | None = None) -> Path:
    """Our safetensors, through the archive writer and out of the archive again."""
    with ZipStream(folder / "a.mar") as stream:
        member = stream.add_pieces("w.safetensors", checkpoint.safetensors(found, rename or {}))
        stream.finish()
    with zipfile.ZipFile(folder / "a.mar") as archive:
        assert archive.testzip() is None
        path = Path(archive.extract("w.safetensors", folder))
    assert path.stat().st_size == member.size
    return path


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def check(path: Path, folder: Path, expected: dict[str, torch.Tensor] | None = None) -> Checkpoint:
    """Read, write, load with the safetensors library, compare with torch.load."""
    found = checkpoint.read(path)
    assert found.obstacle is None
    expected = torch.load(path, map_location="cpu", weights_only=True) if expected is None else expected
    loaded = safetensors.torch.load_file(written(found, folder))
    for name, target in found.aliases.items():
        loaded[name] = loaded[target]
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert same(loaded[name], tensor), name
    return found


def random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def test_every_type(save, tmp_path: Path) -> None:
    state = {f"layer.{number}": random((3, 5), dtype) for number, dtype in enumerate(DTYPES)}
    # Compared with what was saved: torch.load fails on its own old format with float8 and unsigned types.
    found = check(save(state), tmp_path, state)
    assert len(found.tensors) == len(DTYPES)
    assert not found.notes
    assert not found.aliases


def test_our_file_is_the_library_s_byte_by_byte(tmp_path: Path) -> None:
    state = {f"layer.{number}.é": random((2, 3), dtype) for number, dtype in enumerate(DTYPES)}
    torch.save(state, tmp_path / "w.pt")
    ours = written(checkpoint.read(tmp_path / "w.pt"), tmp_path).read_bytes()
    assert ours == safetensors.torch.save(state, {"format": "pt"})


def test_odd_shapes(save, tmp_path: Path) -> None:
    state = {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty rows": torch.empty(0, 7, dtype=torch.int8),
        "one": torch.ones(1, 1, 1),
        "": torch.arange(3),
        "名": torch.arange(4.0),
    }
    check(save(state), tmp_path)


def test_views_and_what_is_not_contiguous(save, tmp_path: Path) -> None:
    base = torch.arange(60.0).reshape(6, 10)
    state = {
        "rows 2 and 3": base[2:4],
        "row 5": base[5],
        "transposed": torch.arange(12).reshape(3, 4).t(),
        "every other": torch.arange(11, dtype=torch.int16)[::2],
        "permuted": random((2, 3, 4, 5), torch.bfloat16).permute(3, 0, 2, 1),
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "a column": torch.arange(20.0).reshape(4, 5)[:, 2],
        "ones in between": torch.arange(6.0).reshape(1, 6, 1).transpose(0, 2),
    }
    found = check(save(state), tmp_path)
    in_memory = {name for name, tensor in found.tensors.items() if isinstance(tensor.source, bytes)}
    assert in_memory == {"transposed", "every other", "permuted", "channels last", "expanded", "a column"}


def test_tied_tensors_become_aliases(save, tmp_path: Path) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    found = check(save(model.state_dict()), tmp_path)
    assert found.aliases == {"head.weight": "embed.weight"}
    path = written(found, tmp_path, {"embed.weight": "e", "head.weight": "h"})
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "servekit.alias.h": "e"}
        assert list(file.keys()) == ["e"]
    again = checkpoint.read(path)
    assert (set(again.tensors), again.aliases) == ({"e"}, {"h": "e"})


def test_different_views_of_one_memory_keep_the_file(save) -> None:
    base = torch.arange(10.0)
    found = checkpoint.read(save({"a": base[:6], "b": base[4:]}))
    assert found.obstacle == "a and b are different views of the same memory"
    with pytest.raises(ModelError, match="cannot become safetensors: a and b"):
        checkpoint.safetensors(found, {})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (lambda: torch.eye(3).to_sparse(), "w is sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "w is sparse"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "w is quantized"),
        (lambda: torch.ones(3, dtype=torch.complex128), "w is complex128, which safetensors does not have"),
        (lambda: torch.ones(3, dtype=torch.complex64).conj(), "w is a conjugated or negated view"),
        (lambda: torch.ones(3, device="meta"), "w is on the meta device and has no data"),
    ],
)
def test_what_safetensors_cannot_hold_keeps_the_file(save, value: Any, told: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = save({"w": value(), "b": torch.ones(2)})
    found = checkpoint.read(path)
    assert found.obstacle == told
    assert set(found.tensors) == {"b"}


def test_parameters_and_their_attributes(save, tmp_path: Path) -> None:
    marked = nn.Parameter(torch.arange(4.0))
    marked.note = "kept by nobody"
    check(save(OrderedDict(a=nn.Parameter(torch.ones(2)), b=marked)), tmp_path)


def test_extra_state_keeps_the_file(save) -> None:
    found = checkpoint.read(save({"fc.weight": torch.ones(2), "fc._extra_state": {"scale": 1.0}}))
    assert found.obstacle == "fc._extra_state is a mapping of 1 and no tensor"


def test_a_training_checkpoint(save, tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    path = save(
        {
            "epoch": 12,
            "best_acc": torch.tensor(0.5),
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
    )
    found = check(path, tmp_path, model.state_dict())
    assert found.notes == (
        "Taken from the checkpoint: 'state_dict', 7 names.",
        "Left out: epoch = 12, best_acc (one tensor), optimizer (a mapping of 2).",
    )


def test_a_checkpoint_like_lightning_s(save, tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.1)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    path = save(
        {
            "epoch": 3,
            "global_step": 99,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
            "loops": {"fit_loop": {"state_dict": {}, "progress": {"total": {"ready": 3}}}},
            "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.1)}},
            "optimizer_states": [optimizer.state_dict()],
            "lr_schedulers": [],
            "hparams_name": "kwargs",
            "hyper_parameters": {"lr": 0.1},
        }
    )
    found = checkpoint.read(path)
    assert set(found.tensors) == {f"model.{name}" for name in model.state_dict()}
    assert "epoch = 3, global_step = 99" in found.notes[1]


def test_several_state_dicts_need_a_key(save) -> None:
    path = save({"net": {"w": torch.ones(2)}, "ema": {"shadow": {"w": torch.zeros(2)}}, "step": 5})
    with pytest.raises(ModelError, match=r"holds 2 state dicts: net, ema\.shadow") as caught:
        checkpoint.read(path)
    assert "--weights-key" in caught.value.hint
    found = checkpoint.read(path, "ema.shadow")
    assert found.notes[0] == "Taken from the checkpoint: 'ema.shadow', 1 names."
    with pytest.raises(ModelError, match="no state dict at --weights-key 'model'") as caught:
        checkpoint.read(path, "model")
    assert caught.value.hint == "It holds: net, ema.shadow."


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.ones(3), "holds one tensor, not a state dict"),
        ([torch.ones(3)], "holds a list of 1, not a state dict"),
        ({"w": torch.ones(3), "epoch": 3}, r"holds no state dict, .*: w \(one tensor\), epoch = 3"),
        ({}, "it is empty"),
        (7, "holds a value of type int"),
    ],
)
def test_what_is_no_state_dict(save, value: Any, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        checkpoint.read(save(value))


def test_data_parallel_and_its_prefix(save, tmp_path: Path) -> None:
    from servekit.domain import state_dict

    model = Net()
    found = checkpoint.read(save(nn.DataParallel(model).state_dict()))
    names = [*found.tensors, *found.aliases]
    assert state_dict.prefix(names) == "module."
    fit = state_dict.fit(names, list(model.state_dict()))
    loaded = safetensors.torch.load_file(written(found, tmp_path, dict(fit.rename)))
    assert nn.Module.load_state_dict(Net(), loaded)
    assert all(same(loaded[name], tensor) for name, tensor in model.state_dict().items())


def test_saved_on_a_gpu(save, tmp_path: Path) -> None:
    """The place of a storage is a word in the pickle; here it is changed by hand, since there is no GPU."""
    state = {"a": torch.arange(5.0), "b": torch.arange(3)}
    path = save(state)
    place = b"X\x03\x00\x00\x00cpu"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data.replace(place, b"X\x06\x00\x00\x00cuda:1"))
    else:
        path.write_bytes(path.read_bytes().replace(place, b"X\x06\x00\x00\x00cuda:1"))
    found = check(path, tmp_path, state)
    assert found.notes == ("2 tensors were saved on 'cuda:1'; they are packaged for any device.",)


def test_a_whole_module_is_told_and_refused(save) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = save(Net())
    kind, reason = weights.detect(path)
    assert kind == weights.WHOLE_MODULE
    assert reason.endswith(".Net")
    with pytest.raises(ModelError, match=r"is a whole module, pickled: .* runs code") as caught:
        checkpoint.read(path)
    assert "state_dict()" in caught.value.hint
    assert weights.describe(path, kind)["parameters"] == sum(t.numel() for t in Net().state_dict().values())


def test_a_module_among_plain_values_is_refused(save) -> None:
    path = save({"model": nn.Linear(2, 2), "epoch": 1})
    with pytest.raises(ModelError, match=r"torch\.nn\.modules\.linear\.Linear"):
        checkpoint.read(path)


def test_what_torch_allows_we_allow_and_nothing_else() -> None:
    from torch import _weights_only_unpickler

    from servekit.system.model_files.pickle_globals import ALLOWED

    theirs = set(_weights_only_unpickler._get_allowed_globals())
    ours = {name for name in ALLOWED if not name.startswith("__builtin__.")}
    assert theirs - ours == set()
    more = {name for name in ours - theirs if not name.startswith("torch.cuda.")}
    assert more <= {"collections.defaultdict", "torch.sparse.BoolTensor"}


def test_safetensors_of_the_library(tmp_path: Path) -> None:
    state = {f"w{number}": random((2, 2), dtype) for number, dtype in enumerate(DTYPES)}
    safetensors.torch.save_file(state, tmp_path / "w.safetensors", {"format": "pt", "who": "me"})
    assert weights.detect(tmp_path / "w.safetensors")[0] == "safetensors"
    check(tmp_path / "w.safetensors", tmp_path, state)
    told = weights.describe(tmp_path / "w.safetensors", "safetensors")
    assert (told["parameters"], told["tensors"], told["dtypes"]["bfloat16"]) == (4 * len(DTYPES), len(DTYPES), 1)
    with pytest.raises(ModelError, match="leave out --weights-key"):
        checkpoint.read(tmp_path / "w.safetensors", "model")


def test_torchscript(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Net()), tmp_path / "s.pt")
    assert weights.detect(tmp_path / "s.pt")[0] == "torchscript"
    assert pickles.scan(tmp_path / "s.pt")[0].endswith("no name outside the list of torch.")
    assert weights.describe(tmp_path / "s.pt", "torchscript")["parameters"] == 15 + 12 + 1
    with pytest.raises(ModelError, match="TorchScript"):
        checkpoint.read(tmp_path / "s.pt")


def test_torch_export(tmp_path: Path) -> None:
    dynamic = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(Net().eval(), (torch.randn(2, 4),), dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "p.pt2")
    assert weights.detect(tmp_path / "p.pt2")[0] == "exported"
    assert "2 archives" in pickles.scan(tmp_path / "p.pt2")[0]
    told = weights.describe(tmp_path / "p.pt2", "exported")
    assert told == {
        "torch": torch.__version__,
        "device": "cpu",
        "architecture": None,
        "inputs": [{"name": "x", "dtype": "float32", "shape": [None, 4]}],
        "parameters": 28,
        "tensors": 7,
        "dtypes": {"float32": 6, "int64": 1},
    }
    with pytest.raises(ModelError, match=r"no data\.pkl inside"):
        checkpoint.read(tmp_path / "p.pt2")


def test_the_old_layout_of_torch_export(tmp_path: Path) -> None:
    torch.save(Net().state_dict(), tmp_path / "state.pt")
    torch.save(((torch.ones(1, 4),), {}), tmp_path / "inputs.pt")
    with zipfile.ZipFile(tmp_path / "p.pt2", "w") as archive:
        archive.writestr("version", "5.1")
        empty = {"graph_module": {"graph": {"tensor_values": {}}, "signature": {"input_specs": []}}}
        archive.writestr("serialized_exported_program.json", json.dumps({**empty, "torch_version": "2.5.1"}))
        archive.write(tmp_path / "state.pt", "serialized_state_dict.pt")
        archive.write(tmp_path / "inputs.pt", "serialized_example_inputs.pt")
    assert weights.detect(tmp_path / "p.pt2")[0] == "exported"
    assert pickles.scan(tmp_path / "p.pt2")[0].startswith("2 pickles in 3 archives")
    told = weights.describe(tmp_path / "p.pt2", "exported")
    assert (told["torch"], told["parameters"], told["tensors"]) == ("2.5.1", 28, 7)


def test_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    weight = helper.make_tensor("w", kinds.FLOAT, [4, 3], [0.5] * 12)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kinds.FLOAT, ["batch", 4]), helper.make_tensor_value_info("w", 1, [4, 3])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, ["batch", 3])],
        [weight],
    )
    model = helper.make_model(graph, producer_name="by hand", opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    assert weights.detect(tmp_path / "m.onnx")[0] == "onnx"
    assert weights.describe(tmp_path / "m.onnx", "onnx") == {
        "producer": "by hand",
        "opset": 17,
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["batch", 3]}],
        "parameters": 12,
        "tensors": 1,
        "dtypes": {"float32": 1},
    }


def test_a_bare_pickle_of_tensors_is_refused(tmp_path: Path) -> None:
    """pickle.dump of tensors calls torch.storage._load_from_bytes, which is torch.load without limits."""
    (tmp_path / "w.pkl").write_bytes(pickle.dumps({"w": torch.ones(2)}))
    with pytest.raises(ModelError, match=r"torch\.storage\._load_from_bytes"):
        pickles.scan(tmp_path / "w.pkl")
