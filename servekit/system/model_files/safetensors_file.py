"""The safetensors format: eight bytes of length, a JSON header, the tensors without gaps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servekit.domain.state_dict import SAFETENSORS_CODES, item_size
from servekit.errors import ModelError
from servekit.system.archives.zipstream import Piece, Pieces, stamp
from servekit.system.model_files.stored_tensor import Checkpoint, StoredTensor

ALIAS = "servekit.alias."
"""Key of the metadata: this prefix and a name -> the name that it shares its tensor with."""

_LENGTH = 8
_MAX_HEADER = 100_000_000  # the library's own limit
# The library lays tensors out by type, this order backwards, so that each is aligned; then by name.
_ORDER = (
    *("BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    *("I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"),
)
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8}


def read(path: Path) -> Checkpoint:
    """Every tensor of a safetensors file. ModelError when the library would not read it either."""
    before = stamp(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if not 2 <= length <= min(_MAX_HEADER, before[0] - _LENGTH):
            raise _damaged(path, "its header does not fit into it")
        text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        metadata = header.pop("__metadata__", None) or {}
        entries = {name: _entry(entry) for name, entry in header.items()}
        aliases = {name.removeprefix(ALIAS): to for name, to in metadata.items() if name.startswith(ALIAS)}
        if not all(isinstance(text, str) for text in (*metadata, *metadata.values())):
            raise ValueError("its metadata is no text")
        [name.encode() for name in entries]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(path, "its header cannot be read") from error
    position = 0
    for dtype, shape, start, end in sorted(entries.values(), key=lambda entry: entry[2:]):
        if start != position or end - start != _size(dtype, shape):
            raise _damaged(path, "its tensors overlap, leave gaps, or have another size than their shape")
        position = end
    if _LENGTH + length + position != before[0]:
        raise _damaged(path, "its end is missing, or bytes follow it")
    if wrong := [name for name, to in aliases.items() if to not in entries or name in entries]:
        raise _damaged(path, f"{wrong[0]!r} shares the tensor of a name that it does not hold")
    first = _LENGTH + length
    tensors = {
        name: StoredTensor(dtype, shape, Piece(path, first + start, end - start, before))
        for name, (dtype, shape, start, end) in entries.items()
    }
    unknown = [name for name, tensor in tensors.items() if tensor.dtype not in SAFETENSORS_CODES.values()]
    obstacle = f"{unknown[0]} is {tensors[unknown[0]].dtype}, which torch does not take" if unknown else None
    return Checkpoint(tensors, (), aliases, obstacle)


def pieces(checkpoint: Checkpoint, rename: Mapping[str, str]) -> Pieces:
    """A safetensors file, as a member of an archive: its header, and ranges of the original.

    The same bytes for the same tensors, whatever their order. ``rename``: name -> new name, for what changes.
    ModelError when the checkpoint has an obstacle, or two names become one.
    """
    if checkpoint.obstacle:
        raise ModelError(f"These weights cannot become safetensors: {checkpoint.obstacle}.")
    new = {name: rename.get(name, name) for name in (*checkpoint.tensors, *checkpoint.aliases)}
    if len(set(new.values())) != len(new):
        raise ModelError("Two tensors would have one name once their prefix is taken off.")
    named = {new[name]: tensor for name, tensor in checkpoint.tensors.items()}
    metadata = {"format": "pt"}
    metadata |= {f"{ALIAS}{new[name]}": new[to] for name, to in sorted(checkpoint.aliases.items())}
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    position, order = 0, sorted(named, key=lambda name: (-_ORDER.index(named[name].dtype), name.encode()))
    for name in order:
        tensor = named[name]
        end = position + tensor.size
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    if len(text) > _MAX_HEADER:
        raise ModelError(f"A safetensors header of {len(text)} bytes is larger than any reader takes.")
    return len(text).to_bytes(_LENGTH, "little") + text, *(named[name].source for name in order)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _entry(entry: Mapping[str, Any]) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, start, end). ValueError or KeyError for anything else."""
    dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _ORDER or not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
        raise ValueError("an entry that describes no tensor")
    return dtype, tuple(shape), start, end


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    bits = math.prod(shape) * _BITS.get(dtype, 8 * item_size(dtype))
    return bits // 8 if bits % 8 == 0 else -1


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"{path} is no safetensors file, or a damaged one: {why}.", hint="Copy or save it again.")
