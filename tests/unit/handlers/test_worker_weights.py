from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from servekit_worker import weights
from servekit_worker.errors import SetupError
from servekit_worker.options import ModelOptions

SOURCE = """
import torch
class Tiny(torch.nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.fc = torch.nn.Linear(2, width)
    def forward(self, x):
        return self.fc(x)
class Plain:
    pass
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An archive with tiny_net.py and its weights, all of them links, as in a deployment."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tiny_net.py").write_text(SOURCE)
    torch.save(torch.nn.ModuleDict({"fc": torch.nn.Linear(2, 2)}).state_dict(), tmp_path / "cache" / "w.pt")
    served = tmp_path / "served"
    served.mkdir()
    for file in (tmp_path / "cache").iterdir():
        (served / file.name).symlink_to(file)
    before = set(sys.modules)
    yield served
    for name in set(sys.modules) - before:
        if "tiny_net" in name:
            del sys.modules[name]


def options(**changes: object) -> ModelOptions:
    base = {
        "format": "state_dict",
        "weights": "w.pt",
        "file": "tiny_net.py",
        "class_name": "Tiny",
        "args": {},
    }
    return ModelOptions(**{**base, **changes})  # type: ignore[arg-type]


def save(root: Path, value: object, **how: object) -> None:
    (root / "w.pt").unlink()
    torch.save(value, root / "w.pt", **how)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_fills_the_model(root: Path, zipped: bool) -> None:
    state = {"fc.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "fc.bias": torch.tensor([5.0, 6.0])}
    save(root, state, _use_new_zipfile_serialization=zipped)
    model = weights.load_model(options(), root)
    assert type(model).__name__ == "Tiny"
    assert model(torch.ones(1, 2)).tolist() == [[8.0, 13.0]]


def test_other_dtypes_are_cast_to_the_models(root: Path) -> None:
    save(root, {"fc.weight": torch.ones(2, 2).half(), "fc.bias": torch.ones(2).half()})
    model = weights.load_model(options(), root)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model(torch.ones(1, 2)).tolist() == [[3.0, 3.0]]


def test_matching_tensors_are_taken_without_a_copy() -> None:
    layer, state = torch.nn.Linear(2, 2), {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    weights.fill(layer, state, "w.pt")
    assert layer.weight.data_ptr() == state["weight"].data_ptr()


def test_mismatches_are_named_and_counted(root: Path) -> None:
    state = {f"layers.{i}.weight": torch.ones(1) for i in range(5)} | {"fc.weight": torch.ones(3, 2)}
    save(root, state)
    with pytest.raises(SetupError) as caught:
        weights.load_model(options(), root)
    told = str(caught.value)
    assert "weights w.pt do not fit Tiny: the file lacks fc.bias" in told
    assert "the model has no layers.0.weight, layers.1.weight, layers.2.weight and 2 more" in told
    assert "shapes differ: fc.weight is [3, 2] in the file and [2, 2] in the model" in told


def test_weights_of_data_parallel_get_a_hint(root: Path) -> None:
    save(root, {"module.fc.weight": torch.ones(2, 2), "module.fc.bias": torch.ones(2)})
    with pytest.raises(SetupError, match=r"save model\.module\.state_dict\(\)"):
        weights.load_model(options(), root)


def test_a_pickled_model_is_never_unpickled(root: Path) -> None:
    save(root, torch.nn.Linear(2, 2))
    with pytest.raises(SetupError, match=r"w\.pt: not a state dict .*Save it with torch\.save"):
        weights.load_model(options(), root)


def test_a_checkpoint_is_no_state_dict(root: Path) -> None:
    save(root, {"epoch": 3, "state_dict": {"fc.bias": torch.ones(2)}})
    with pytest.raises(SetupError, match="a file with keys epoch, state_dict"):
        weights.load_model(options(), root)


@pytest.mark.parametrize("form", ["state_dict", "torchscript"])
def test_garbage(root: Path, form: str) -> None:
    (root / "w.pt").unlink()
    (root / "w.pt").write_bytes(b"not weights at all")
    with pytest.raises(SetupError, match=r"weights w\.pt: not a"):
        weights.load_model(options(format=form), root)


def test_missing_and_empty_files(root: Path) -> None:
    with pytest.raises(SetupError, match=r"weights none\.pt: not in the archive"):
        weights.load_model(options(weights="none.pt"), root)
    (root / "w.pt").unlink()
    (root / "w.pt").touch()
    with pytest.raises(SetupError, match=r"weights w\.pt: the file is empty"):
        weights.load_model(options(), root)


@pytest.mark.parametrize(("name", "told"), [("Teeny", "no class 'Teeny'"), ("Plain", "no torch.nn.Module class")])
def test_a_class_that_is_not_there(root: Path, name: str, told: str) -> None:
    with pytest.raises(SetupError, match=rf"tiny_net\.py has {told}.*it has: Tiny"):
        weights.load_model(options(class_name=name), root)


def test_a_module_already_imported_is_not_run_twice(root: Path) -> None:
    first = weights.import_file(root / "tiny_net.py")
    assert weights.import_file(root / "tiny_net.py") is first
    assert first.__file__ == str(root / "tiny_net.py"), "the link, not its target"


def test_a_model_file_named_like_another_module(root: Path) -> None:
    (root / "json.py").write_text(SOURCE)
    import json

    module = weights.import_file(root / "json.py")
    try:
        assert module.__name__ == "servekit_model_json"
        assert sys.modules["json"] is json
    finally:
        del sys.modules["servekit_model_json"]


def test_the_users_own_error_passes_through_and_leaves_no_half_module(root: Path) -> None:
    (root / "broken_tiny_net.py").write_text("raise KeyError('mine')")
    with pytest.raises(KeyError, match="mine"):
        weights.import_file(root / "broken_tiny_net.py")
    assert "broken_tiny_net" not in sys.modules


def test_torchscript(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.ReLU(), torch.zeros(1)), str(root / "s.pt"))
    model = weights.load_model(options(format="torchscript", weights="s.pt"), root)
    assert model(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert "TorchScript, which torch deprecates" in caplog.text
