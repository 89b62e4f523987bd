"""Every format in TorchServe's real worker: the same answers as the model in this process."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import worker_process

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.last = torch.nn.Linear(8, 3)
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))
"""
ROWS = ([1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.25, 2.0], [0.0, 0.0, 0.0, 1.0])
BATCH = torch.export.Dim("batch")


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    scope: dict[str, Any] = {}
    exec(NET, scope)
    torch.manual_seed(0)
    return scope["Net"]().eval()


def exported(net: torch.nn.Module, path: Path, *, dynamic: bool = True, half: bool = False) -> Any:
    shapes = ({0: BATCH},) if dynamic else None
    program = torch.export.export(net, (torch.randn(2, 4),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return program


def onnx(net: torch.nn.Module, path: Path, *, dynamic: bool = True, half: bool = False) -> None:
    args = (torch.randn(2, 4).half(),) if half else (torch.randn(2, 4),)
    model = net.half() if half else net
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = ({0: BATCH},) if dynamic else None
            torch.onnx.export(model, args, path, dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False)
    finally:
        logging.disable(logging.NOTSET)


def aoti(net: torch.nn.Module, path: Path, **_: Any) -> None:
    program = torch.export.export(net, (torch.randn(2, 4),), dynamic_shapes=({0: BATCH},))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def safetensors(net: torch.nn.Module, path: Path, **_: Any) -> None:
    from safetensors.torch import save_file

    save_file(net.state_dict(), path)


def section(form: str, file: str, **changes: Any) -> dict[str, Any]:
    model: dict[str, Any] = {"format": form, "weights": file}
    if form == "safetensors":
        model |= {"file": "pkg/net.py", "class": "Net", "args": {}}
    return {
        "schema": 2,
        "kind": "tensor",
        "precision": "auto",
        "model": model,
        "tensor": {"input_shape": [4], "dtype": "float32"},
        **changes,
    }


FILES: dict[str, tuple[str, Callable[..., Any]]] = {
    "safetensors": ("w.safetensors", safetensors),
    "exported": ("m.pt2", exported),
    "aoti": ("m.pt2", aoti),
    "onnx": ("m.onnx", onnx),
}


def lay_out(folder: Path, net: torch.nn.Module, form: str, make: dict[str, Any], **changes: Any) -> Path:
    name, write = FILES[form]
    write(net, folder / name, **make)
    files: dict[str, str | bytes] = {name: (folder / name).read_bytes(), "pkg/net.py": "from .parts import *\n" + NET}
    files |= {"pkg/parts.py": "", "pkg/__init__.py": ""}
    return worker_process.lay_out(folder, "tensor_handler.py", section(form, name, **changes), files)


@pytest.mark.parametrize("form", sorted(FILES))
def test_the_same_answers(tmp_path: Path, net: torch.nn.Module, form: str) -> None:
    model_dir = lay_out(tmp_path, net, form, {})
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "tensor_handler.py", batch_size=4) == 200, worker.output
        answers = worker.predict(*((json.dumps(row).encode(), "application/json") for row in ROWS))
    expected = net(torch.tensor(ROWS)).tolist()
    for answer, row in zip(answers, expected, strict=True):
        assert answer.status == 200
        assert answer.json() == pytest.approx(row, rel=1e-4)


@pytest.mark.parametrize(
    ("form", "make", "changes", "told"),
    [
        (
            "exported",
            {"dynamic": False},
            {},
            "batches of exactly 2, but with batchSize 4 the server sends batches of 1 to 4 items",
        ),
        ("onnx", {"dynamic": False}, {}, "batches of exactly 2"),
        ("onnx", {}, {"precision": "bf16"}, "precision bf16 would have no effect: the ONNX graph's own is fp32"),
        ("onnx", {}, {"keep_fp32": ["first"]}, "keep_fp32 is not available for format onnx"),
        ("exported", {}, {"keep_fp32": ["first"]}, "keep_fp32 is not available for format exported"),
        (
            "safetensors",
            {},
            {"keep_fp32": ["frist"], "precision": "bf16"},
            "'frist' matches no module of the model (near it: first)",
        ),
    ],
)
def test_what_would_be_ignored_or_wrong_is_refused(
    tmp_path: Path, net: torch.nn.Module, form: str, make: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    model_dir = lay_out(tmp_path, net, form, make, **changes)
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "tensor_handler.py", batch_size=4) != 200
        assert told in worker.output


def test_keep_fp32_keeps_a_module_exact(tmp_path: Path, net: torch.nn.Module) -> None:
    """Both layers kept: the answers are those of fp32, although the worker says bf16."""
    model_dir = lay_out(tmp_path, net, "safetensors", {}, precision="bf16", keep_fp32=["first", "l*"])
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "tensor_handler.py", batch_size=4) == 200, worker.output
        (answer,) = worker.predict((json.dumps(ROWS[0]).encode(), "application/json"))
        assert "2 modules compute in fp32: first, last" in worker.output
    assert answer.json() == pytest.approx(net(torch.tensor(ROWS[0])).tolist(), rel=1e-6)


def test_the_reason_is_told(tmp_path: Path, net: torch.nn.Module) -> None:
    model_dir = lay_out(tmp_path, net, "safetensors", {}, precision="bf16", precision_reason="auto: measured on X")
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "tensor_handler.py", batch_size=4) == 200, worker.output
        assert "precision bf16 (auto: measured on X)" in worker.output


def test_an_onnx_graph_in_fp16_says_so(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(NET, scope)
    torch.manual_seed(0)
    half = scope["Net"]().eval()
    expected = half(torch.tensor(ROWS[0])).tolist()
    model_dir = lay_out(tmp_path, half, "onnx", {"half": True})
    with worker_process.start(model_dir) as worker:
        assert worker.load(model_dir, "tensor_handler.py", batch_size=4) == 200, worker.output
        (answer,) = worker.predict((json.dumps(ROWS[0]).encode(), "application/json"))
        assert "precision fp16 (the ONNX graph's own)" in worker.output
    assert answer.json() == pytest.approx(expected, rel=2e-2, abs=1e-2)
