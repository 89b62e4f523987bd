"""Real models through every door: the trained digits CNN in each format, and a package of several modules."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import servekit
from servekit.domain.model import ImageOptions
from servekit.system.archives import archive
from servekit.verbs.package import Packed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "digits"
IMAGE = ImageOptions(8, 8, 1, (0.3,), (0.35,), 10)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/digits, trained; its model in every format."""
    pytest.importorskip("sklearn", reason="scikit-learn carries the digits")
    root = tmp_path_factory.mktemp("digits")
    subprocess.run((sys.executable, str(EXAMPLES / "train.py"), str(root)), check=True, stdout=subprocess.DEVNULL)
    scope: dict[str, Any] = {}
    exec((root / "model.py").read_text(), scope)
    model = scope["DigitsCNN"]()
    state = torch.load(root / "digits.pt", weights_only=True)
    model.load_state_dict(state)
    model.eval()
    inputs, shapes = (torch.zeros(2, 1, 8, 8),), ({0: torch.export.Dim("batch")},)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, inputs), str(root / "script.pt"))
        torch.export.save(torch.export.export(model, inputs, dynamic_shapes=shapes), root / "exported.pt2")
        torch.onnx.export(model, inputs, root / "digits.onnx", dynamo=True, dynamic_shapes=shapes, verbose=False)
    logging.disable(logging.NOTSET)
    wrapped = {"epoch": 15, "state_dict": {f"module.{key}": value for key, value in state.items()}, "lr": 0.1}
    torch.save(wrapped, root / "checkpoint.pt")
    return root


def package(root: Path, weights: str, **more: Any) -> Packed:
    how = {"labels": "labels.txt", "image": IMAGE, "examples": ["heldout"], "batch_size": 32, "root": root, **more}
    return servekit.package(weights, name=weights.replace(".", "-"), handler="image", **how)


@pytest.mark.parametrize(
    ("weights", "form"),
    [
        ("digits.pt", "safetensors"),
        ("checkpoint.pt", "safetensors"),
        ("script.pt", "torchscript"),
        ("exported.pt2", "exported"),
        ("digits.onnx", "onnx"),
    ],
)
def test_every_format_knows_the_digits(digits: Path, weights: str, form: str) -> None:
    packed = package(digits, weights, model="model.py:DigitsCNN" if form == "safetensors" else None)
    assert archive.open_archive(packed.path).config["handler"]["model"]["format"] == form
    assert packed.record is not None
    answers = {example.file: example.answer["predictions"] for example in packed.record.examples}
    assert len(answers) == 360
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    right = sum(best[0]["index"] == int(Path(file).name.split("-")[0]) for file, best in answers.items())
    assert right >= 0.95 * len(answers), "trained weights, and on the right side of every conversion"
    assert all(entry["label"] == names[entry["index"]] for best in answers.values() for entry in best)
    assert packed.record.batches.sizes == (1, 2, 32)
    rows = {row.precision: row for row in packed.record.precisions}
    if form != "onnx":
        assert rows["bf16"].top1 is not None and rows["bf16"].top1 >= 0.995
        assert packed.record.trained == ""


def test_all_formats_give_the_same_scores(digits: Path) -> None:
    """After the tests above: one proof each, beside its archive."""
    from servekit.system.proofs import proof_file

    found = sorted((digits / "model_store").glob("*.proof.json"))
    proofs = [proof for path in found if (proof := proof_file.read(path))]
    if len(proofs) < 2:
        pytest.skip("run with the tests above")
    reference = {e.file: e.answer["predictions"] for e in proofs[0].records[0].examples}
    for proof in proofs[1:]:
        for example in proof.records[0].examples:
            for a, b in zip(reference[example.file], example.answer["predictions"], strict=True):
                if a["score"] > 1e-3:
                    assert (a["index"], a["score"]) == (b["index"], pytest.approx(b["score"], abs=1e-5)), proof.name


FILES = {
    "handler.py": (
        "from acme.serving.base import Base\n"
        "class Handler(Base):\n"
        "    def handle(self, data, context):\n"
        "        return [self.answer(row.get('body')) for row in data]\n"
    ),
    "acme/__init__.py": "",
    "acme/serving/__init__.py": "",
    "acme/serving/base.py": (
        "from ..nets.tiny import build\n"
        "from ..tables import WORDS\n"
        "class Base:\n"
        "    def initialize(self, context):\n"
        "        self.model = build()\n"
        "    def answer(self, body):\n"
        "        word = body if isinstance(body, str) else bytes(body).decode('utf-8', 'replace')\n"
        "        return {'known': WORDS.get(word.strip(), 0), 'score': float(self.model(len(word)))}\n"
    ),
    "acme/nets/__init__.py": "",
    "acme/nets/tiny.py": "def build():\n    return lambda n: n * 0.5\n",
    "acme/tables.py": (
        "import json\nfrom pathlib import Path\n"
        "def _read():\n    return json.loads((Path(__file__).parent / 'data' / 'words.json').read_text())\n"
        "WORDS = _read()\n"
    ),
    "acme/data/words.json": '{"cat": 3, "dog": 4}',
    "cat.txt": "cat",
}


def test_a_package_of_several_modules_with_data(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    said: list[str] = []
    packed = servekit.package(
        name="words",
        handler="handler.py",
        extra_files=["acme"],
        examples=["cat.txt"],
        root=tmp_path,
        progress=said.append,
    )
    members = set(archive.open_archive(packed.path).members)
    assert {name for name in FILES if name.startswith("acme")} <= members
    assert packed.record is not None
    assert packed.record.examples[0].answer == {"known": 3, "score": 1.5}
    assert packed.record.batches.sizes == (1, 2, 8)


def test_a_model_file_inside_a_package_keeps_its_relative_imports(tmp_path: Path) -> None:
    files = {
        "nets/__init__.py": "",
        "nets/parts.py": "WIDTH = 2\n",
        "nets/net.py": (
            "import torch\nfrom .parts import WIDTH\n"
            "class Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(3, WIDTH)\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    torch.save({f"module.{k}": v for k, v in torch.nn.Linear(3, 2).state_dict().items()}, tmp_path / "w.pt")
    packed = servekit.package("w.pt", name="net", model="nets/net.py:Net", extra_files=["nets"], root=tmp_path)
    config = archive.open_archive(packed.path).config
    assert config["handler"]["model"]["file"] == "nets/net.py"
    assert packed.parameters == 8
