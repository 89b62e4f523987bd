"""Read a safetensors file without the safetensors package: checked, mapped, and not copied.

The format: 8 bytes with the header's length (little-endian), the header as JSON, then the tensors' bytes
without gaps. A key ``servekit.alias.NAME`` in the header's ``__metadata__`` says that NAME is the tensor
named by its value (tied weights, stored once).
"""

from __future__ import annotations

import json
import math
import mmap
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from servekit_worker.errors import SetupError

ALIAS = "servekit.alias."
_LIMIT = 100_000_000  # bytes of header, the limit of the safetensors library too
_SHOWN = 5
_NAMES = {
    "BOOL": "bool",
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
}
_PACKED = {"F4": 2}  # values a byte; torch counts bytes where the file counts values


def read(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of ``path`` by name, on the CPU, over a private memory map: workers share its pages.

    A tensor that does not start at a multiple of its item's size is copied. SetupError names every problem.
    """
    if sys.byteorder != "little":
        raise SetupError(f"weights {path.name}: safetensors files are little-endian and this host is not.")
    header, start = _header(path)
    aliases = _aliases(header.pop("__metadata__", None), path.name)
    size = path.stat().st_size - start
    problems = _problems(header, size)
    problems += [
        f"{name} is to be the same as {target}, which the file " + ("holds twice" if name in header else "lacks")
        for name, target in aliases.items()
        if name in header or target not in header
    ]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise _damaged(path.name, "; ".join(problems[:_SHOWN]) + more)
    with path.open("rb") as file:
        # Copy on write: torch wants memory that may be written, the file must not change.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    state = {name: _tensor(mapped, start, entry) for name, entry in header.items()}
    return {**state, **{name: state[target] for name, target in aliases.items()}}


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors' bytes begin."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise _damaged(path.name, f"it has {size} bytes, fewer than the 8 of the header's length")
        length = int.from_bytes(prefix, "little")
        if length > _LIMIT:
            raise _damaged(path.name, f"its header is said to have {length} bytes, more than {_LIMIT}")
        if length < 2 or 8 + length > size:
            raise _damaged(path.name, f"its header is said to have {length} bytes, and the file has {size}")
        raw = file.read(length)
    if not raw.startswith(b"{"):
        raise _damaged(path.name, "its header does not begin with {")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path.name, f"its header is not JSON: {error}") from error
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} appears twice")
    return found


def _aliases(metadata: Any, name: str) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(name, "its __metadata__ is not a mapping of texts")
    return {key[len(ALIAS) :]: value for key, value in metadata.items() if key.startswith(ALIAS)}


def _problems(header: Mapping[str, Any], size: int) -> list[str]:
    """What is wrong with the entries of ``header``, over ``size`` bytes of tensors."""
    problems = [problem for name, entry in header.items() for problem in _entry_problems(name, entry)]
    if problems:
        return problems
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        first, last = entry["data_offsets"]
        if first != end:
            what = "overlaps the tensor before it" if first < end else f"leaves a gap of {first - end} bytes before it"
            problems.append(f"{name} {what}")
        end = last
    if not problems and end != size:
        problems.append(f"the tensors take {end} bytes and the file has {size} for them")
    return problems


def _entry_problems(name: str, entry: Any) -> list[str]:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        return [f"{name} is not described by dtype, shape and data_offsets"]
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or _dtype(dtype) is None:
        return [f"{name} has dtype {dtype!r}, which torch {torch.__version__} does not have"]
    if not _whole_numbers(shape):
        return [f"{name} has shape {shape!r}, which is not a list of whole numbers of at least 0"]
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return [f"{name} has data_offsets {offsets!r}, which are not its begin and end"]
    packed = _PACKED.get(dtype, 1)
    if packed > 1 and (not shape or shape[-1] % packed):
        return [f"{name} is {dtype} {shape}: its last axis must be a multiple of {packed}"]
    needed = math.prod(shape) * _dtype(dtype).itemsize // packed
    if offsets[1] - offsets[0] != needed:
        return [f"{name} is {dtype} {shape}, {needed} bytes, but its data_offsets hold {offsets[1] - offsets[0]}"]
    return []


def _tensor(mapped: mmap.mmap, start: int, entry: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape = _dtype(entry["dtype"]), list(entry["shape"])
    if packed := _PACKED.get(entry["dtype"]):
        shape[-1] //= packed
    first, last = (start + offset for offset in entry["data_offsets"])
    if first == last:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(mapped, dtype=torch.uint8, count=last - first, offset=first)
    if first % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).reshape(shape)


def _dtype(name: str) -> Any:
    return getattr(torch, _NAMES[name], None) if name in _NAMES else None


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _damaged(name: str, what: str) -> SetupError:
    return SetupError(f"weights {name}: not a sound safetensors file: {what}. Write it again.")
