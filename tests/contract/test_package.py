"""Packaging with the real probe: torch, real weights, and everything that people get wrong."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from servekit.domain.model import ModelSpec, TensorOptions
from servekit.errors import ModelError
from servekit.system.archives import archive
from servekit.verbs.package import Packed, package

NET = """
import torch
from helper import FACTOR
class Net(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.fc = torch.nn.Linear(2, width)
    def forward(self, x):
        return self.fc(x) * FACTOR
class Plain:
    pass
"""
HANDLER = """
from servekit_worker.serving import ModelHandler
from servekit_worker import tensors
class Mine(ModelHandler):
    def preprocess(self, item):
        return tensors.decode(item.body, "float32", (2,))
"""
WITHOUT_WEIGHTS = """
class Rules:
    def initialize(self, context): ...
    def handle(self, data, context): return [1.0 for row in data]
"""
SPEC = ModelSpec(
    "m", weights="w.pt", model="net.py:Net", handler="tensor", extra_files=("helper.py",), tensor=TensorOptions((2,))
)


class Hostile:
    """Unpickled freely, it would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "net.py").write_text(NET)
    (folder / "helper.py").write_text("FACTOR = 2\n")
    (folder / "mine.py").write_text(HANDLER)
    net = torch.nn.ModuleDict({"fc": torch.nn.Linear(2, 3)})
    torch.save(net.state_dict(), folder / "w.pt")
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 3), torch.zeros(1, 2)), str(folder / "script.pt"))
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, and a temporary folder of its own in which nothing may be left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    shutil.copytree(template, tmp_path / "project")
    return tmp_path / "project"


def run(folder: Path, **changes: Any) -> Packed:
    try:
        return package(dataclasses.replace(SPEC, **changes), folder, folder / "store", lambda _: None)
    finally:
        assert list((folder.parent / "scratch").iterdir()) == []


def refused(folder: Path, **changes: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        run(folder, **changes)
    left = sorted(path.name for path in folder.glob("store/*")) if (folder / "store").exists() else []
    assert left in ([], ["m.mar", "m.proof.json"]), "what was there before, and nothing else"
    return caught.value


def test_a_state_dict_twice_the_same(folder: Path) -> None:
    first = run(folder)
    assert first.parameters == 9
    assert first.path.stat().st_size == first.size
    info = archive.open_archive(first.path)
    unpacked = archive.unpack(info, folder / "cache")
    stored, saved = load_file(unpacked / "w.safetensors"), torch.load(folder / "w.pt", weights_only=True)
    assert all(torch.equal(stored.pop(key), value) for key, value in saved.items())
    assert not stored
    assert not list(unpacked.rglob("__pycache__")), "the probe left no byte code"
    elsewhere = folder.parent / "another folder é"
    shutil.copytree(folder, elsewhere, ignore=shutil.ignore_patterns("store", "cache"))
    for path in elsewhere.iterdir():
        os.utime(path, (1, 1))
    second = package(SPEC, elsewhere, elsewhere / "store", lambda _: None)
    assert second.path.read_bytes() == first.path.read_bytes()


def test_torchscript(folder: Path) -> None:
    assert run(folder, weights="script.pt", model=None).parameters == 9


def test_a_handler_of_ones_own_with_and_without_weights(folder: Path) -> None:
    assert run(folder, handler="mine.py").parameters == 9
    message = refused(folder, handler="mine.py", weights=None, model=None).message
    assert "this archive has no model section" in message
    (folder / "mine.py").write_text(WITHOUT_WEIGHTS)
    assert run(folder, handler="mine.py", weights=None, model=None).parameters is None


def test_a_handler_may_be_a_function(folder: Path) -> None:
    (folder / "mine.py").write_text("class A: pass\nclass B: pass\ndef handle(data, context):\n    return data\n")
    assert run(folder, handler="mine.py", weights=None, model=None).parameters is None


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import no_such_package\n", "imports 'no_such_package', which is neither in the archive nor installed here"),
        ("import servekit\n", "imports 'servekit', which is neither in the archive"),
        ("from .helper import FACTOR\n", "mine.py:1: a relative import"),
        ("def f(:\n", "mine.py is not Python: invalid syntax"),
        ("raise KeyError('mine')\n", "mine.py cannot be imported: KeyError: 'mine'"),
        (f"{HANDLER}class Second: pass\n", "it defines: Mine, Second."),
        ("x = 1\n", "it defines: none."),
        ("class Mine:\n    def handle(self, data, context): ...\n", "the class Mine has no initialize."),
    ],
)
def test_handlers_that_torchserve_would_not_load(folder: Path, source: str, told: str) -> None:
    (folder / "mine.py").write_text(source)
    assert told in refused(folder, handler="mine.py", weights=None, model=None).message


def test_a_missing_import_of_the_model_shows_the_traceback(folder: Path) -> None:
    error = refused(folder, extra_files=())
    assert "the model file net.py imports 'helper'" in error.message
    assert "--extra-file" in error.hint
    assert "from helper import FACTOR" in error.detail


def test_a_class_that_is_not_there_is_answered_with_the_one_that_is(folder: Path) -> None:
    error = refused(folder, model="net.py:Nett")
    assert "net.py has no class 'Nett'; it has: Net." in error.message
    assert error.hint == "Did you mean Net?"
    assert "Plain is not a torch.nn.Module" in refused(folder, model="net.py:Plain").message


def test_weights_of_another_size_name_the_tensor(folder: Path) -> None:
    message = refused(folder, model_args={"width": 4}).message
    assert "fc.weight is [3, 2] in the file and [4, 2] in the model" in message


def test_arguments_that_the_class_does_not_take(folder: Path) -> None:
    error = refused(folder, model_args={"depth": 4})
    assert "Net(depth=4) failed: TypeError" in error.message
    assert "--model-arg" in error.hint


@pytest.mark.parametrize("what", ["module", "command"])
def test_pickles_are_refused_and_never_run(folder: Path, what: str) -> None:
    trap = folder.parent / "trap"
    torch.save(torch.nn.Linear(2, 3) if what == "module" else {"fc.weight": Hostile(trap)}, folder / "w.pt")
    told = {"module": "w.pt is a pickled nn.Module", "command": "system"}[what]
    assert told in refused(folder).message
    assert not trap.exists()
    torch.load(folder / "w.pt", weights_only=False)
    assert trap.exists() is (what == "command"), "the trap works where pickles are trusted"


def test_damaged_weights(folder: Path) -> None:
    whole = (folder / "w.pt").read_bytes()
    for content in (b"", b"garbage", whole[: len(whole) // 2]):
        (folder / "w.pt").write_bytes(content)
        assert "w.pt" in refused(folder).message
    with zipfile.ZipFile(folder / "w.pt", "w") as out:
        out.writestr("w/data.pkl", "not a pickle")
    assert "w.pt" in refused(folder).message


def test_a_checkpoint_around_the_state_dict(folder: Path) -> None:
    torch.save({"epoch": 1, "state_dict": {}}, folder / "w.pt")
    assert "holds no state dict" in refused(folder).message
    net = torch.nn.DataParallel(torch.nn.ModuleDict({"fc": torch.nn.Linear(2, 3)}))
    adam = torch.optim.Adam(net.parameters())
    torch.save({"epoch": 7, "state_dict": net.state_dict(), "optimizer": adam.state_dict()}, folder / "w.pt")
    said: list[str] = []
    packed = package(SPEC, folder, folder / "store", said.append)
    assert packed.parameters == 9
    told = "\n".join(said)
    assert "state_dict" in told and "optimizer" in told and "epoch" in told, "what was taken, and what was left out"
    assert "module." in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os; os._exit(7)", "ended the process that loaded it (exit code 7)"),
        ("import os; os.kill(os.getpid(), 11)", "ended the process that loaded it (SIGSEGV)"),
    ],
)
def test_a_model_file_that_exits_or_crashes_is_named(folder: Path, line: str, told: str) -> None:
    (folder / "net.py").write_text(line + "\n")
    error = refused(folder)
    assert told in error.message
    assert "net.py" in error.message or "or a module that it imports" in error.message
    assert error.exit_code == 4


def test_a_traceback_shows_the_users_own_files_alone(folder: Path) -> None:
    error = refused(folder, model_args={"width": -3})
    assert 'net.py", line' in error.detail
    assert "site-packages" not in error.detail
    (folder / "net.py").write_text("def broken(:\n")
    error = refused(folder)
    assert "SyntaxError" in error.detail
    assert "importlib" not in error.detail
