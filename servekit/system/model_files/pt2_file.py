"""``.pt2``: what torch.export and AOTInductor write, told apart and described by the files inside."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servekit.errors import ModelError
from servekit.system.model_files import zip_members
from servekit.system.model_files.pickle_machine import MAX_BYTES, follow
from servekit.system.model_files.pickle_values import Tensor
from servekit.system.model_files.torch_dtypes import SCALAR_TYPES

EXPORTED, AOTI = "exported", "aoti"
_AOTI_FOLDER = re.compile(r"(?:^|/)data/aotinductor/.+\.(?:so|pt2|cubin|o|cpp)$")
_MODEL = re.compile(r"(?:^|/)models/[^/]+\.json$")
_OLD_PROGRAM = "serialized_exported_program.json"  # torch before 2.7 or so; at the root of the zip
_CONFIG = re.compile(r"(?:^|/)data/(?:weights|constants)/[^/]+_config\.json$")
_METADATA = re.compile(r"(?:^|/)data/aotinductor/.+_metadata\.json$")


def kind_of(names: list[str]) -> tuple[str, str] | None:
    """(kind, how it was told) from the names of a zip's members; None for another zip.

    A package of both is an aoti one: its compiled code is what is loaded.
    """
    if any(_AOTI_FOLDER.search(name) for name in names):
        return AOTI, "it holds code compiled by AOTInductor"
    if any(_MODEL.search(name) for name in names) and any(name.endswith("archive_format") for name in names):
        return EXPORTED, "it holds a program of torch.export"
    if _OLD_PROGRAM in names:
        return EXPORTED, "it holds a program of torch.export (layout before torch 2.8)"
    return None


def describe(path: Path) -> dict[str, Any]:
    """``torch``, ``device``, ``architecture`` (compute capability or CPU instructions), ``inputs``,
    ``parameters``, ``tensors``, ``dtypes``: as recorded in the file, None for what is not. ModelError.
    """
    with path.open("rb") as file, zip_members.opened(file, str(path)) as archive:
        told: dict[str, Any] = {"torch": None, "device": None, "architecture": None, "inputs": None}
        metas, devices = list[Mapping[str, Any]](), list[str]()
        weights_listed = False
        for info in archive.infolist():
            name = info.filename
            if _MODEL.search(name) or name == _OLD_PROGRAM:
                program = _json(archive, info, path)
                told["torch"] = program.get("torch_version") or told["torch"]
                with _expected(path, name):
                    told["inputs"] = _inputs(program)
            elif _CONFIG.search(name):
                weights_listed = True
                with _expected(path, name):
                    metas += [entry["tensor_meta"] for entry in _json(archive, info, path)["config"].values()]
            elif _METADATA.search(name):
                recorded = _json(archive, info, path)
                told["torch"] = recorded.get("AOTI_TORCH_VERSION") or told["torch"]
                devices += [str(recorded["AOTI_DEVICE_KEY"])] if recorded.get("AOTI_DEVICE_KEY") else []
                capability = recorded.get("AOTI_COMPUTE_CAPABILITY")
                told["architecture"] = capability or recorded.get("AOTI_CPU_ISA") or told["architecture"]
        with _expected(path, "the list of weights"):
            told |= _tensors(metas) if weights_listed else _old_tensors(archive, path)
            devices += [str(meta["device"]["type"]) for meta in metas if meta.get("device")]
    # Compiled code runs on what it was compiled for; the constants beside it may lie on the CPU.
    told["device"] = Counter(devices).most_common(1)[0][0] if devices else None
    return told


@contextlib.contextmanager
def _expected(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"{path}: {name} is not laid out as torch lays it out.", hint="Export it again.") from error


def _json(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> dict[str, Any]:
    text = zip_members.content(archive, info, MAX_BYTES, f"{path}/{info.filename}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}/{info.filename} is not JSON.", hint="Export or copy it again.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}/{info.filename} is not a JSON object.", hint="Export or copy it again.")
    return found


def _inputs(program: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the user passes: name, dtype and shape, with None for a dimension that may vary."""
    module = program["graph_module"]
    values = module["graph"]["tensor_values"]
    told = []
    for spec in module["signature"]["input_specs"]:
        arg = spec.get("user_input", {}).get("arg", {}).get("as_tensor")
        if arg:
            meta = values[arg["name"]]
            dtype, shape = _dtype(meta), [size.get("as_int") for size in meta["sizes"]]
            told.append({"name": arg["name"], "dtype": dtype, "shape": shape})
    return told


def _dtype(meta: Mapping[str, Any]) -> str:
    return SCALAR_TYPES.get(meta["dtype"], f"type {meta['dtype']}")


def _tensors(metas: list[Mapping[str, Any]]) -> dict[str, Any]:
    dtypes = Counter(_dtype(meta) for meta in metas)
    sizes = (math.prod(size["as_int"] for size in meta["sizes"]) for meta in metas)
    return {"parameters": sum(sizes), "tensors": len(metas), "dtypes": dict(dtypes)}


def _old_tensors(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    """Before torch 2.8 the weights were a file of torch.save inside; in a compiled package they are in the code."""
    found: list[Tensor] = []
    listed = False
    for name in ("serialized_state_dict.pt", "serialized_constants.pt"):
        if name not in archive.namelist():
            continue
        listed = True
        inner = zip_members.content(archive, archive.getinfo(name), 16 * MAX_BYTES, f"{path}/{name}")
        if inner[:4] != zip_members.MAGIC:
            continue
        with zip_members.opened(io.BytesIO(inner), f"{path}/{name}") as nested:
            for info in nested.infolist():
                if info.filename.endswith("data.pkl"):
                    value = follow(zip_members.content(nested, info, MAX_BYTES, f"{path}/{name}")).value
                    found += [item for item in value.values() if isinstance(item, Tensor)]
    if not listed:
        return {"parameters": None, "tensors": None, "dtypes": None}
    dtypes = Counter(tensor.dtype or "unknown" for tensor in found)
    parameters = sum(math.prod(tensor.shape) for tensor in found)
    return {"parameters": parameters, "tensors": len(found), "dtypes": dict(dtypes)}
