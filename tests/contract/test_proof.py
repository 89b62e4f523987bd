"""The proof itself: TorchServe's real loader, real torch, and handlers that get something wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from servekit.domain.proof import Record
from servekit.errors import ModelError
from servekit.verbs.prove import Subject, record

HANDLERS = Path(__file__).resolve().parents[2] / "handlers"
NET = """
import torch

class Cancel(torch.nn.Module):
    def forward(self, x):
        return (x + 1000) - 1000

class Net(torch.nn.Module):
    def __init__(self, cancel=False, norm=False):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.cancel = Cancel() if cancel else torch.nn.Identity()
        self.norm = torch.nn.BatchNorm1d(8) if norm else torch.nn.Identity()
        self.last = torch.nn.Linear(8, 3)
    def forward(self, x):
        return self.last(self.norm(self.cancel(torch.relu(self.first(x)))))
"""
BASE = """
import json
class Handler:
    def initialize(self, context):
        self.initialized = True
    def handle(self, data, context):
        return {answers}
"""
INPUTS = ([1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.25, 2.0], [0.0, 0.0, 0.0, 1.0])


class Project:
    """An archive's files in a folder; ``prove`` runs the real proof of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.section: dict[str, Any] = {
            "schema": 1,
            "kind": "tensor",
            "precision": "auto",
            "model": {"format": "state_dict", "weights": "w.pt", "file": "net.py", "class": "Net", "args": {}},
            "tensor": {"input_shape": [4], "dtype": "float32"},
        }
        self.handler, self.batch_size = "tensor_handler.py", 4
        self.examples: tuple[str, ...] = ()
        self.tolerance: dict[str, float] = {}

    def model(self, **args: Any) -> torch.nn.Module:
        """Seeded weights of Net(**args), saved."""
        scope: dict[str, Any] = {}
        exec(NET, scope)
        torch.manual_seed(0)
        net = scope["Net"](**args)
        torch.save(net.state_dict(), self.folder / "w.pt")
        self.section["model"]["args"] = args
        return net.eval()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def ask(self, *inputs: Any) -> None:
        for number, value in enumerate(inputs):
            self.write(f"example/{number}.json", json.dumps(value))
        self.examples = tuple(f"example/{number}.json" for number in range(len(inputs)))

    def foreign(self, source: str) -> None:
        self.write("mine.py", source)
        self.handler, self.section = "mine.py", {}

    def prove(self, **how: Any) -> Record:
        config: dict[str, Any] = {"batchSize": self.batch_size}
        if self.section:
            config["handler"] = self.section
        if self.tolerance:
            config["proof"] = {"tolerance": self.tolerance}
        manifest = {"model": {"modelName": "m", "handler": self.handler, "configFile": "model-config.yaml"}}
        self.write("model-config.yaml", yaml.safe_dump(config))
        self.write("MAR-INF/MANIFEST.json", json.dumps(manifest))
        self.lines: list[str] = []
        return record(Subject("m", self.folder, self.handler, config, self.examples), None, self.lines.append, **how)

    def refused(self) -> ModelError:
        with pytest.raises(ModelError) as caught:
            self.prove()
        return caught.value


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "archive")
    shutil.copytree(HANDLERS, made.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    made.write("net.py", NET)
    return made


def test_the_record_tells_what_torch_tells(project: Project) -> None:
    net = project.model()
    project.ask(*INPUTS)
    made = project.prove()
    expected = net(torch.tensor(INPUTS)).tolist()
    for example, row in zip(made.examples, expected, strict=True):
        assert example.answer == pytest.approx(row, rel=1e-5)
        assert (example.status, example.content_type) == (200, "application/json")
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        half = [net(torch.tensor([one]))[0].float() for one in INPUTS]
    reference = [torch.tensor(row) for row in expected]
    worst = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(reference, half, strict=True))
    rows = {row.precision: row for row in made.precisions}
    assert set(rows) == {"fp32", "bf16"}
    assert rows["bf16"].max_rel == pytest.approx(worst, rel=1e-3)
    assert rows["bf16"].max_rel and rows["bf16"].max_rel > 1e-4, "bf16 was really computed"
    assert rows["bf16"].top1 is None, "three numbers are no classes, as long as nobody says so"
    assert all(row.batch_ms and row.batch_ms > 0 for row in rows.values())
    assert [memory.batch for memory in rows["fp32"].memory] == [1, 2, 4]
    weights_mib = (4 * 8 + 8 + 8 * 3 + 3) * 4 / 2**20
    assert rows["fp32"].memory[0].weights_mib == pytest.approx(weights_mib)
    assert (made.chosen, made.reason) == ("fp32", "auto: the CPU")
    assert made.parameters == 67
    assert made.flops == 2 * (4 * 8 + 8 * 3)
    assert made.batches.sizes == (1, 2, 4)
    assert made.batches.malformed == "fails alone"
    assert made.batches.max_rel is not None and made.batches.max_rel < 1e-5
    assert made.device.kind == "cpu"
    assert made.versions["torch"] == torch.__version__


def test_without_an_example_it_is_asked_noise_of_its_shape(project: Project) -> None:
    project.model()
    assert [example.file for example in project.prove().examples] == ["noise", "noise"]


def test_beyond_the_tolerance_the_layers_are_named(project: Project) -> None:
    project.model(cancel=True)
    project.section["precision"] = "bf16"
    error = project.refused()
    assert error.message.startswith("m: at bf16 the answers leave the tolerance: largest relative error ")
    assert "It starts at: cancel (" in error.message
    assert error.message.endswith("fp32 would pass.")
    project.tolerance = {"bf16": 1.0, "top1": 0.01}
    assert project.prove().chosen == "bf16"


def test_a_precision_that_only_a_gpu_has_stays_open(project: Project) -> None:
    project.model()
    project.section["precision"] = "fp16"
    made = project.prove()
    assert made.chosen is None
    assert "fp16 is open on CPU" in made.reason
    assert "needs an NVIDIA GPU" in made.reason


def test_what_is_not_measured_in_time_says_so(project: Project) -> None:
    project.model()
    rows = {row.precision: row for row in project.prove(budget_s=0.0).precisions}
    assert rows["bf16"].problem == "not measured within 0 s"
    assert rows["fp32"].problem is None


def test_norm_layers_as_initialised_claim_no_best_class(project: Project) -> None:
    project.model(norm=True)
    project.section["labels"] = "labels.json"
    project.write("labels.json", json.dumps({"0": "a", "1": "b", "2": "c"}))
    made = project.prove()
    assert made.trained == "all 1 norm layers are as initialised: untrained, so no best class is claimed"


def test_labels_that_are_not_as_many_as_outputs(project: Project) -> None:
    project.model()
    project.section["labels"] = "labels.json"
    project.write("labels.json", json.dumps({"0": "a", "1": "b"}))
    assert "the labels name 2 classes, but the model has 3 outputs." in project.refused().message


def test_an_example_that_the_handler_refuses(project: Project) -> None:
    project.model()
    project.ask([1.0, 2.0])
    message = project.refused().message
    assert "the handler refuses example/0.json with HTTP 400: " in message
    assert "the input has shape [2]; this model takes [4]" in message


def test_a_model_that_mixes_its_batch(project: Project) -> None:
    project.model()
    project.write(
        "net.py", NET.replace("self.last(self", "self.last(x.mean(0, keepdim=True).repeat(len(x), 2)); (self")
    )
    project.ask(*INPUTS)
    assert "depends on the batch it is in: alone and in a batch of 2 it differs" in project.refused().message


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ("[json.loads(data[0]['body']) if False else 1.0]", "2 items were asked and 1 answered"),
        ("[sum(r['body']) for r in data][:2] + [0.0] * (len(data) > 2)", "4 items were asked and 3 answered"),
        ("sum(data[0]['body'])", "the handler fails on example/0.json: 1 items were asked and a float answered"),
        ("[1 / 0]", "the handler fails on example/0.json: ZeroDivisionError: division by zero."),
    ],
)
def test_a_handler_that_loses_items(project: Project, answers: str, told: str) -> None:
    project.foreign(BASE.replace("{answers}", answers))
    project.ask(*INPUTS)
    assert told in project.refused().message


def test_a_foreign_handler_is_asked_as_it_is(project: Project) -> None:
    project.foreign(BASE.replace("{answers}", "[sum(row['body']) for row in data]"))
    project.ask(*INPUTS)
    made = project.prove()
    assert [example.answer for example in made.examples] == [10.0, 1.75, 1.0]
    assert made.precisions == ()
    assert made.reason == "the handler decides: it is not one of servekit's"
    assert made.batches.malformed == "fails with its batch" or made.warnings == ()


def test_one_malformed_item_that_fails_all_is_a_warning(project: Project) -> None:
    project.foreign(
        BASE.replace("{answers}", "[row['body'][0] + 1.5 if isinstance(row['body'], list) else 1 / 0 for row in data]")
    )
    project.ask(*INPUTS)
    made = project.prove()
    assert made.batches.malformed == "fails with its batch"
    assert "one malformed item fails the whole batch (ZeroDivisionError" in made.warnings[0]
    assert any("one malformed item" in line for line in project.lines)
    project.batch_size = 1
    assert project.prove().batches.malformed == "not tried: batches of 1"


def test_a_handlers_own_compare_judges(project: Project) -> None:
    project.model()
    project.section["precision"] = "bf16"
    project.write(
        "mine.py",
        "from servekit_worker.serving import ModelHandler\n"
        "from servekit_worker import tensors\n"
        "class Mine(ModelHandler):\n"
        "    def preprocess(self, item):\n"
        "        return tensors.decode(item.body, 'float32', (4,))\n"
        "    def postprocess(self, outputs):\n"
        "        return [{'best': 'abc'[i]} for i in outputs.argmax(1).tolist()]\n"
        "    def compare(self, a, b):\n"
        "        return {'max_rel': 0.125 * (self.precision.name == 'bf16'), 'mean_rel': 0.0, 'top1': a == b}\n",
    )
    project.handler = "mine.py"
    project.section["kind"] = "custom"
    del project.section["tensor"]
    project.ask(*INPUTS)
    assert "largest relative error 0.12, allowed 0.02" in project.refused().message
    project.tolerance = {"bf16": 0.2}
    row = project.prove().precisions[1]
    assert (row.compared, row.top1) == ("by the handler's compare(a, b)", 1.0)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "import nonsense_xyz\nclass H:\n    def initialize(s, c): ...\n    def handle(s, d, c): ...\n",
            "nonsense_xyz",
        ),
        ("from .net import Net\nclass H: ...\n", "mine.py:1: a relative import"),
        ("class A: ...\nclass B: ...\n", "must define exactly one class"),
        ("class A: ...\n", "the class A has no initialize and no handle."),
        ("def broken(:\n", "mine.py is not Python"),
        ("import servekit\n" + BASE.replace("{answers}", "[]"), "imports 'servekit'"),
        ("import os; os._exit(7)\n", "(exit code 7)"),
        ("import os; os.kill(os.getpid(), 11)\n", "(SIGSEGV)"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        (BASE.replace("self.initialized = True", "raise RuntimeError('no CUDA')"), "RuntimeError: no CUDA"),
    ],
)
def test_a_handler_that_cannot_be_loaded(project: Project, source: str, told: str) -> None:
    project.foreign(source)
    assert told in project.refused().message


def test_only_the_archive_and_site_packages_can_be_imported(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "only_here.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    project.foreign("import only_here\n" + BASE.replace("{answers}", "[]"))
    assert "imports 'only_here', which is neither in the archive nor installed here." in project.refused().message


def test_a_class_whose_arguments_are_wrong_has_its_own_words(project: Project) -> None:
    project.model()
    project.section["model"]["args"] = {"wide": True}
    error = project.refused()
    assert error.message.startswith("m: Net(wide=True) failed: TypeError: ")
    assert "--model-arg" in error.hint


def test_what_the_handler_prints_is_no_result(project: Project) -> None:
    noisy = 'print(\'{"problem": "forged"}\')\n' + BASE.replace("{answers}", "[sum(r['body']) for r in data]")
    project.foreign(noisy)
    project.batch_size = 1
    project.ask(*INPUTS)
    assert [example.answer for example in project.prove().examples] == [10.0, 1.75, 1.0]
