"""Our handlers inside TorchServe's own worker process: real loader, codec and Service."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from worker_process import Worker, lay_out, start

MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.fc = torch.nn.Linear(64, classes)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        print("forward", list(x.shape), flush=True)
        return self.fc(x.flatten(1))
"""

IMAGE = {"resize": 8, "crop": 8, "channels": 1, "mean": [0.5], "std": [0.25], "top_k": 2}
NET = {"format": "state_dict", "weights": "w.pt", "file": "model.py", "class": "Net"}
OCTETS, AS_JSON = "application/octet-stream", "application/json"


@pytest.fixture(scope="module")
def net() -> torch.nn.Linear:
    torch.manual_seed(1)
    return torch.nn.Linear(64, 4)


@pytest.fixture(scope="module")
def weights(net: torch.nn.Linear) -> bytes:
    return saved({"fc.weight": net.weight.detach(), "fc.bias": net.bias.detach()})


@pytest.fixture(scope="module")
def image_worker(tmp_path_factory: pytest.TempPathFactory, weights: bytes) -> Iterator[Worker]:
    """Model, labels, example, threads; loaded with a batch size of 4."""
    section = {
        "schema": 1,
        "kind": "image",
        "precision": "auto",
        "threads": 1,
        "model": NET,
        "image": IMAGE,
        "labels": "names.json",
        "example": "example/a.png",
    }
    files = {"model.py": MODEL, "w.pt": weights, "names.json": json.dumps({"0": "zero", "1": "one"})}
    folder = lay_out(tmp_path_factory.mktemp("image"), "image_handler.py", section, {**files, "example/a.png": png(0)})
    with start(folder) as worker:
        assert worker.load(folder, "image_handler.py", batch_size=4) == 200, worker.output
        yield worker


def test_warms_up_and_reports_before_it_is_ready(image_worker: Worker) -> None:
    assert "forward [1, 1, 8, 8]" in image_worker.output
    assert "forward [4, 1, 8, 8]" in image_worker.output
    pid = image_worker.process.pid
    report = json.loads((image_worker.reports / f"m-{pid}.json").read_text())
    assert report.pop("load_s") >= 0
    assert report.pop("warmup_s") > 0
    assert report == {
        "schema": 1,
        "model": "m",
        "pid": pid,
        "device": "cpu",
        "gpu_id": None,
        "gpu_uuid": None,
        "precision": "fp32",
        "precision_reason": "auto: the CPU",
        "threads": 1,
        "warmup_batches": [1, 4],
        "torch": torch.__version__,
    }


def test_image_answers_are_the_models_own(image_worker: Worker, net: torch.nn.Linear) -> None:
    (answer,) = image_worker.predict((png(3), OCTETS))
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(png(3))), dtype=np.float32))
    scores = net(((pixels / 255 - 0.5) / 0.25).flatten()).softmax(0)
    best = scores.argsort(descending=True)[:2].tolist()
    assert (answer.status, answer.content_type) == (200, AS_JSON)
    predictions = answer.json()["predictions"]
    assert [p["index"] for p in predictions] == best
    assert [p["label"] for p in predictions] == [{0: "zero", 1: "one"}.get(i, str(i)) for i in best]
    assert [p["score"] for p in predictions] == pytest.approx(scores[best].tolist(), abs=1e-6)


def test_one_bad_item_of_four_answers_its_own_4xx(image_worker: Worker) -> None:
    alone = [image_worker.predict((png(seed), OCTETS))[0].json() for seed in (1, 2, 3)]
    before = image_worker.output.count("forward")
    batch = image_worker.predict((png(1), OCTETS), (png(2), OCTETS), (b"GIF89a no", OCTETS), (png(3), OCTETS))
    assert [answer.status for answer in batch] == [200, 200, 415, 200]
    served = [batch[i].json()["predictions"] for i in (0, 1, 3)]
    for got, expected in zip(served, alone, strict=True):
        assert [p["index"] for p in got] == [p["index"] for p in expected["predictions"]]
    assert batch[2].json() == {
        "code": 415,
        "type": "UnsupportedMediaTypeException",
        "message": "not a JPEG or PNG image.",
    }
    assert image_worker.output.count("forward") == before + 1, "the good three go through one forward pass"
    assert "forward [3, 1, 8, 8]" in image_worker.output


def test_all_bad_items_cost_no_forward_pass(image_worker: Worker) -> None:
    before = image_worker.output.count("forward")
    batch = image_worker.predict((b"", OCTETS), (png(1)[:60], OCTETS), (b'{"a": 1}', AS_JSON))
    assert [answer.status for answer in batch] == [400, 400, 415]
    assert image_worker.output.count("forward") == before


@pytest.fixture(scope="module")
def tensor_worker(tmp_path_factory: pytest.TempPathFactory, weights: bytes) -> Iterator[Worker]:
    section = {
        "schema": 1,
        "kind": "tensor",
        "model": NET,
        "tensor": {"input_shape": None, "dtype": "float32"},
    }
    files = {"model.py": MODEL, "w.pt": weights}
    folder = lay_out(tmp_path_factory.mktemp("tensor"), "tensor_handler.py", section, files)
    with start(folder) as worker:
        assert worker.load(folder, "tensor_handler.py", batch_size=4) == 200, worker.output
        yield worker


def test_tensor_takes_json_and_npy_and_groups_by_shape(tensor_worker: Worker, net: torch.nn.Linear) -> None:
    assert "no warm-up: no example and no input shape" in tensor_worker.output
    flat, square = np.arange(64, dtype=np.float32) / 64, np.ones((8, 8), dtype=np.float32)
    answers = tensor_worker.predict(
        (json.dumps(flat.tolist()).encode(), AS_JSON),
        (npy(square), OCTETS),
        (b"[1, [2]]", AS_JSON),
        (b'["NaN"]', AS_JSON),
        (json.dumps((flat * 2).tolist()).encode(), OCTETS),
    )
    assert [answer.status for answer in answers] == [200, 200, 400, 400, 200]
    for index, array in ((0, flat), (1, square), (4, flat * 2)):
        expected = net(torch.from_numpy(array).flatten()).tolist()
        assert answers[index].json() == pytest.approx(expected, abs=1e-5)


def test_a_shape_that_the_model_refuses_fails_alone(tensor_worker: Worker) -> None:
    good, wrong = json.dumps([0.5] * 64).encode(), b"[1, 2, 3]"
    answers = tensor_worker.predict((wrong, AS_JSON), (good, AS_JSON))
    assert [answer.status for answer in answers] == [500, 200]
    assert b"Traceback" not in answers[0].body
    (alone,) = tensor_worker.predict((wrong, AS_JSON))
    assert (alone.status, alone.body) == (503, b"error"), "TorchServe's answer to a failed batch"
    assert "mat1 and mat2 shapes cannot be multiplied" in tensor_worker.output


def test_nan_never_leaves_as_json(tensor_worker: Worker) -> None:
    body = npy(np.full(64, np.nan, dtype=np.float32))
    (answer,) = tensor_worker.predict((body, OCTETS))
    assert answer.status == 500
    assert "NaN" in answer.json()["message"]
    (binary,) = tensor_worker.predict((body, OCTETS), headers={"Accept": "application/x-npy"})
    assert (binary.status, binary.content_type) == (200, "application/x-npy")
    assert np.isnan(np.load(io.BytesIO(binary.body))).all()


def test_torchscript_is_served_and_called_deprecated(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.Softplus(), torch.zeros(1, 2)), buffer)
    model = {"format": "torchscript", "weights": "s.pt"}
    section = {"schema": 1, "kind": "tensor", "model": model, "tensor": {"input_shape": [2]}}
    folder = lay_out(tmp_path, "tensor_handler.py", section, {"s.pt": buffer.getvalue()})
    with start(folder) as worker:
        assert worker.load(folder, "tensor_handler.py", batch_size=1) == 200, worker.output
        (answer,) = worker.predict((b"[0, 1]", AS_JSON))
        assert answer.json() == pytest.approx([0.693147, 1.313262], abs=1e-5)
        assert "TorchScript, which torch deprecates" in worker.output


CUSTOM = """
import importlib.util, torch
from servekit_worker.errors import ItemError
from servekit_worker.serving import ModelHandler

class Doubler(ModelHandler):
    def load_model(self):
        return torch.nn.Identity()
    def preprocess(self, item):
        if item.body == "bad":
            raise ItemError(422, "bad word")
        return torch.tensor([float(item.body)])
    def forward(self, batch):
        assert torch.is_inference_mode_enabled()
        return self.model(batch) * 2
    def postprocess(self, outputs):
        try:
            found = importlib.util.find_spec("servekit") is not None
        except ModuleNotFoundError:
            found = False
        return [{"twice": row.item(), "servekit": found} for row in outputs]
"""


def test_a_handler_of_the_users_own_without_weights_and_without_servekit(tmp_path: Path) -> None:
    section = {"schema": 1, "kind": "custom", "example": "two.txt"}
    folder = lay_out(tmp_path, "doubler.py", section, {"doubler.py": CUSTOM, "two.txt": "2"})
    with start(folder) as worker:
        assert worker.load(folder, "doubler.py", batch_size=2) == 200, worker.output
        assert "servekit: warm-up" in worker.output
        good, bad = worker.predict((b"21", "text/plain"), (b"bad", "text/plain"))
        assert good.json() == {"twice": 42.0, "servekit": False}
        assert (bad.status, bad.json()["message"]) == (422, "bad word")


TENSOR: dict[str, Any] = {"schema": 1, "kind": "tensor", "tensor": {"input_shape": [64]}}
BROKEN = {
    "wrong class name": (
        "tensor_handler.py",
        {**TENSOR, "model": {**NET, "class": "Nat"}},
        {},
        -1,
        "model file model.py has no class 'Nat'; it has: Net",
    ),
    "unknown option": (
        "tensor_handler.py",
        {**TENSOR, "model": NET, "precison": "fp32"},
        {},
        -1,
        "handler.precison is an unknown key; did you mean 'precision'?",
    ),
    "missing import in the user's handler": (
        "mine.py",
        {"schema": 1, "kind": "custom"},
        {"mine.py": "import no_such_package\n" + CUSTOM},
        -1,
        "ModuleNotFoundError: No module named 'no_such_package'",
    ),
    "missing import in the model file": (
        "tensor_handler.py",
        {**TENSOR, "model": NET},
        {"model.py": "import no_such_package\n" + MODEL},
        -1,
        "ModuleNotFoundError: No module named 'no_such_package'",
    ),
    "weights of another model": (
        "tensor_handler.py",
        {**TENSOR, "model": {**NET, "args": {"classes": 5}}},
        {},
        -1,
        "weights w.pt do not fit Net: shapes differ: fc.weight is [4, 64] in the file and [5, 64] in the ",
    ),
    "the model's own exception": (
        "tensor_handler.py",
        {**TENSOR, "model": NET},
        {"model.py": MODEL.replace("self.calls = 0", "raise RuntimeError('no luck today')")},
        500,
        "RuntimeError: no luck today",
    ),
}


@pytest.mark.parametrize(("handler", "section", "files", "code", "told"), BROKEN.values(), ids=BROKEN)
def test_a_worker_that_cannot_start_says_why(
    tmp_path: Path,
    weights: bytes,
    handler: str,
    section: dict[str, Any],
    files: dict[str, str],
    code: int,
    told: str,
) -> None:
    folder = lay_out(tmp_path, handler, section, {"model.py": MODEL, "w.pt": weights, **files})
    with start(folder) as worker:
        assert worker.load(folder, handler, batch_size=1) == code
        worker.process.wait(timeout=60)
        assert "Traceback" in worker.output
        assert told in worker.output
        assert not worker.reports.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens when torch sees no GPU")
def test_an_assigned_gpu_that_is_not_there_is_no_reason_for_the_cpu(tmp_path: Path, weights: bytes) -> None:
    folder = lay_out(tmp_path, "tensor_handler.py", {**TENSOR, "model": NET}, {"model.py": MODEL, "w.pt": weights})
    with start(folder) as worker:
        assert worker.load(folder, "tensor_handler.py", batch_size=1, gpu=1) == -1
        assert "the server assigned GPU 1, but this torch sees no CUDA device" in worker.output
        assert "out of memory" not in worker.output


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_the_assigned_gpu_is_the_current_device_and_is_reported(tmp_path: Path, weights: bytes) -> None:
    last = torch.cuda.device_count() - 1
    folder = lay_out(tmp_path, "tensor_handler.py", {**TENSOR, "model": NET}, {"model.py": MODEL, "w.pt": weights})
    with start(folder) as worker:
        assert worker.load(folder, "tensor_handler.py", batch_size=2, gpu=last) == 200, worker.output
        report = json.loads((worker.reports / f"m-{worker.process.pid}.json").read_text())
        assert (report["device"], report["gpu_id"]) == (f"cuda:{last}", last)
        assert report["gpu_uuid"].startswith("GPU-")
        (answer,) = worker.predict((json.dumps([0.5] * 64).encode(), AS_JSON))
        assert answer.status == 200


def saved(state: dict[str, torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def png(seed: int) -> bytes:
    """A grey 8 x 8 image."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
