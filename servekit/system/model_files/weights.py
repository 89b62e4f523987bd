"""What kind of weights a file or folder holds, told from its content without torch; and what is known of them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from servekit.domain.state_dict import SAFETENSORS_CODES
from servekit.errors import ModelError
from servekit.system.model_files import checkpoint, checkpoint_zip, onnx_file, pickles, pt2_file, zip_members
from servekit.system.model_files.pickle_machine import Result
from servekit.system.model_files.pickle_values import Built, Tensor, shown

STATE_DICT = "state_dict"
SAFETENSORS = "safetensors"
TORCHSCRIPT = "torchscript"
EXPORTED = pt2_file.EXPORTED
AOTI = pt2_file.AOTI
ONNX = "onnx"
WHOLE_MODULE = "whole_module"
HUGGINGFACE = "huggingface"
PEFT = "peft"

_NAME_THEM = "Name the weights: servekit package WEIGHTS ..."
_DTYPES = {code: dtype for dtype, code in SAFETENSORS_CODES.items()}


def detect(path: Path) -> tuple[str, str]:
    """(kind, how it was told). ModelError for what is missing, empty, damaged or of no kind that is known.

    Nothing is judged here: what a pickle mentions is :func:`servekit.system.model_files.pickles.scan`'s to refuse.
    """
    if path.is_symlink() and not path.exists():
        raise ModelError(f"{path} is a link that leads nowhere.", hint=_NAME_THEM)
    if not path.exists():
        raise ModelError(f"{path} does not exist.", hint=_NAME_THEM)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise ModelError(f"{path} is not a file.", hint="Name the file that torch.save wrote.")
    try:
        return _file(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


def _folder(path: Path) -> tuple[str, str]:
    if (path / "adapter_config.json").is_file():
        return PEFT, "a folder with adapter_config.json"
    if (path / "config.json").is_file():
        return HUGGINGFACE, "a folder with config.json"
    raise ModelError(
        f"{path} is not a file, and not a folder of save_pretrained (it has neither config.json nor "
        "adapter_config.json).",
        hint="Name the file that torch.save wrote, or the folder that save_pretrained wrote.",
    )


def _file(path: Path) -> tuple[str, str]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        raise ModelError(f"{path} is empty.", hint="Save the weights again; the disk may have been full.")
    if start[:4] == zip_members.MAGIC:
        return _zip(path)
    if start[:2] == b"PK":
        raise ModelError(f"{path} is truncated or damaged: it begins like a zip.", hint="Copy or save it again.")
    if pickles.is_safetensors(start, size):
        return SAFETENSORS, "it has the header of safetensors"
    if start[:1] == b"\x80":
        return _pickle(path)
    if pickles.is_tar(start):
        raise ModelError(
            f"{path} is a tar: torch 0.1 wrote such files, and no torch since 2.6 loads them.",
            hint="Load it where you trust it and save it anew: torch.save(model.state_dict(), 'weights.pt')",
        )
    if onnx_file.is_onnx(path):
        return ONNX, "it is an ONNX model"
    raise ModelError(
        f"{path} is not a file of torch.save or torch.jit.save (it starts with {start[:2]!r}), nor safetensors, "
        "ONNX or .pt2.",
        hint="Save a state dict: torch.save(model.state_dict(), 'weights.pt')",
    )


def _zip(path: Path) -> tuple[str, str]:
    with path.open("rb") as file, zip_members.opened(file, str(path)) as archive:
        names = archive.namelist()
    if (kind := pt2_file.kind_of(names)) is not None:
        return kind
    if pickles.is_torchscript(names):
        return TORCHSCRIPT, "it holds code/ and constants.pkl"
    result, _ = checkpoint_zip.load(path)
    return _by_object(result, "it holds data.pkl and no code/")


def _pickle(path: Path) -> tuple[str, str]:
    if not checkpoint.is_legacy(path):
        raise ModelError(
            f"{path} is a pickle of torch before 1.6 without its header, or of something else.",
            hint="Load it where you trust it and save it anew: torch.save(model.state_dict(), 'weights.pt')",
        )
    result, _ = checkpoint.load(path)
    return _by_object(result, "torch.save before 1.6, or with its old format")


def _by_object(result: Result, reason: str) -> tuple[str, str]:
    if (name := checkpoint.whole_module(result)) is not None:
        return WHOLE_MODULE, f"its object is of the class {shown(name)}"
    return STATE_DICT, reason


def describe(path: Path, kind: str) -> dict[str, Any]:
    """What a file tells about itself without being loaded: at least ``parameters`` (elements of all tensors,
    those that share memory counted once), ``tensors`` (how many) and ``dtypes`` (torch's name -> how many
    tensors), None where it does not say. More for ``exported`` and ``aoti`` (pt2_file) and ``onnx`` (onnx_file).

    ModelError for a damaged file. Folders tell nothing here.
    """
    if kind in (STATE_DICT, SAFETENSORS):
        found = checkpoint.read(path)
        dtypes = Counter(_DTYPES.get(tensor.dtype, tensor.dtype) for tensor in found.tensors.values())
        parameters = sum(math.prod(tensor.shape) for tensor in found.tensors.values())
        count = len(found.tensors) + len(found.aliases)
        told = {"parameters": parameters, "tensors": count, "dtypes": dict(dtypes), "notes": list(found.notes)}
        # What is in the way is not counted, so that the counts are those of the rest.
        return told | {"obstacle": found.obstacle}
    if kind in (TORCHSCRIPT, WHOLE_MODULE):
        return _in_objects(checkpoint.load(path)[0])
    if kind in (EXPORTED, AOTI):
        return pt2_file.describe(path)
    if kind == ONNX:
        return onnx_file.describe(path)
    return {"parameters": None, "tensors": None, "dtypes": None}


def _in_objects(result: Result) -> dict[str, Any]:
    """Tensors anywhere in an object. Without recursion: how deep it goes is the file's choice."""
    waiting, seen, found = [result.value], set[int](), dict[Any, Tensor]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Built):
            waiting.append(value.state)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, Tensor):
            key = value.storage.key if value.storage else id(value)
            found[key, value.offset, value.shape, value.strides] = value
    dtypes = Counter(tensor.dtype or "unknown" for tensor in found.values())
    parameters = sum(math.prod(tensor.shape) for tensor in found.values())
    return {"parameters": parameters, "tensors": len(found), "dtypes": dict(dtypes)}
