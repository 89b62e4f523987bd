"""Programs of torch.export: a graph of torch operations with its weights, no Python of the user's."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from servekit_worker.engines.place import Place, check_batches
from servekit_worker.errors import SetupError

_WAY_OUT = (
    "Export it with a dynamic batch axis: torch.export.export(model.eval(), (x,), "
    "dynamic_shapes=({0: torch.export.Dim('batch')},)), where x has 2 items or more"
)
_HALF = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class ExportedModel:
    """Calls the program's module on its device. It is in evaluation mode if it was when it was exported.

    ``own`` is bf16 or fp16 for a program with weights of that type, else None: its operations are torch's,
    so TF32 and autocast have their effect. ``asserts_dtypes``: the program fails where autocast changes a
    type that it was traced with.
    """

    def __init__(self, program: Any, name: str) -> None:
        self.name = name
        self.source = "the exported program's own"
        self._module = program.module()
        state = {v.dtype for v in program.state_dict.values() if isinstance(v, torch.Tensor)}
        self.own = next((told for dtype, told in _HALF.items() if dtype in state), None)
        self.operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        self.asserts_dtypes = "aten._assert_tensor_metadata.default" in self.operations

    def __call__(self, *batch: Any, **named: Any) -> Any:
        try:
            return self._module(*batch, **named)
        except RuntimeError as error:
            if self.asserts_dtypes and "dtype mismatch" in str(error) and torch.is_autocast_enabled(_kind(batch)):
                raise SetupError(
                    f"weights {self.name}: the program was traced with a type that autocast changes: {error} "
                    "Set precision to fp32 or tf32, or package the state dict with its model file."
                ) from error
            raise


def load(path: Path, place: Place) -> ExportedModel:
    """The program of ``path`` on ``place.device``, for batches of 1 to ``place.batch_size`` items."""
    _check_archive(path, place.device)
    try:
        with _tensors_only():
            program = torch.export.load(path)
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise SetupError(
            f"weights {path.name}: torch {torch.__version__} cannot load it as an exported program: {first} "
            "Write it with torch.export.save(torch.export.export(...), 'NAME.pt2') of this torch."
        ) from error
    smallest, largest = _batch_range(program)
    check_batches(path.name, smallest, largest, place, _WAY_OUT)
    if place.device.type != "cpu":
        program = _moved(program, place.device, path.name)
    return ExportedModel(program, path.name)


def _check_archive(path: Path, device: torch.device) -> None:
    """Refuse what would be unpickled, and tensors of a device that this worker does not have."""
    if not zipfile.is_zipfile(path):
        raise SetupError(f"weights {path.name}: not a .pt2 archive. Write it with torch.export.save(...).")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if any("data/aotinductor/" in name for name in names) and not any("models/" in name for name in names):
            raise SetupError(f"weights {path.name}: compiled by AOTInductor, not exported. Set model.format to aoti.")
        configs = [name for name in names if name.endswith(("_weights_config.json", "_constants_config.json"))]
        entries: dict[str, Any] = {}
        for name in configs:
            entries.update(_entries(archive.read(name), path.name))
    pickled = sorted(k for k, v in entries.items() if v.get("use_pickle") or "opaque" in str(v.get("path_name")))
    if pickled:
        raise SetupError(
            f"weights {path.name}: {', '.join(pickled[:3])} would have to be unpickled, which may run any code. "
            "Export a model whose parameters and constants are plain tensors."
        )
    devices = {_device(entry) for entry in entries.values()} - {None, "cpu", str(device)}
    if devices:
        raise SetupError(
            f"weights {path.name}: exported on {', '.join(sorted(map(str, devices)))}, but this worker is on {device}. "
            "Move the model to the CPU before torch.export.export; the worker moves it to its own device."
        )


def _entries(raw: bytes, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads(raw)["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError(f"weights {name}: its list of tensors is damaged: {error}.") from error


def _device(entry: Any) -> str | None:
    device = (entry.get("tensor_meta") or {}).get("device")
    if not device:
        return None
    index = device.get("index")
    return str(device["type"]) if device["type"] == "cpu" else f"{device['type']}:{index or 0}"


@contextlib.contextmanager
def _tensors_only() -> Iterator[None]:
    """torch.export.load falls back to full unpickling; the environment is where torch lets that be refused."""
    force, free = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    before = {key: os.environ.pop(key, None) for key in (force, free)}
    os.environ[force] = "1"
    try:
        yield
    finally:
        del os.environ[force]
        os.environ.update({key: value for key, value in before.items() if value is not None})


def _batch_range(program: Any) -> tuple[int, int | None]:
    """The smallest and the largest (None: any) size of the first axis of the first input."""
    inputs = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in inputs and isinstance(value, torch.Tensor) and value.dim():
            size = value.shape[0]
            if isinstance(size, int):
                return size, size
            known = program.range_constraints.get(size.node.expr)
            if known is None:
                return 1, None
            return max(1, int(known.lower)), (int(known.upper) if _finite(known.upper) else None)
    return 1, None


def _finite(bound: Any) -> bool:
    try:
        return int(bound) < 2**62
    except (TypeError, ValueError, OverflowError, AttributeError):
        return False


def _moved(program: Any, device: torch.device, name: str) -> Any:
    try:
        from torch.export.passes import move_to_device_pass
    except ImportError as error:
        raise SetupError(
            f"weights {name}: torch {torch.__version__} cannot move an exported program to {device}; "
            "install a newer torch."
        ) from error
    return move_to_device_pass(program, str(device))


def _kind(batch: tuple[Any, ...]) -> str:
    return next((value.device.type for value in batch if isinstance(value, torch.Tensor)), "cpu")
