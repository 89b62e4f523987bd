"""From the inert tensors of a pickle to byte ranges of its file: bounds, order, shared memory."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servekit.domain.state_dict import SAFETENSORS_CODES, item_size
from servekit.errors import ModelError, raise_together
from servekit.system.archives.zipstream import Piece
from servekit.system.model_files import strided
from servekit.system.model_files.checkpoint_unwrap import kind_of
from servekit.system.model_files.pickle_values import Tensor, shown
from servekit.system.model_files.stored_tensor import Checkpoint, Loaded, StoredTensor
from servekit.system.model_files.torch_dtypes import ITEM_SIZES

_MAX_GATHERED = 64 * 1024 * 1024
_MAX_GATHERED_TOGETHER = 512 * 1024 * 1024


@dataclass
class _Placing:
    path: Path
    loaded: Loaded
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    views: dict[Any, str] = field(default_factory=dict)
    ranges: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    gathered: int = 0
    problems: list[str] = field(default_factory=list)


def place(state: Mapping[str, Any], loaded: Loaded, path: Path) -> Checkpoint:
    """Where every tensor of a state dict lies. ModelError, with all of them, for those beyond their storage."""
    work = _Placing(path, loaded)
    obstacle = loaded.obstacle
    for name, value in state.items():
        # Short of an obstacle, the rest is looked at too: damage is told first.
        why = _place(work, name, value)
        obstacle = obstacle or why
    raise_together(ModelError, work.problems, hint="The file is damaged: copy or save it again.")
    obstacle = obstacle or _overlap(work)
    return Checkpoint(work.tensors, _device_notes(state), work.aliases, obstacle)


def _place(work: _Placing, name: str, value: Any) -> str | None:
    """Add one; returns an obstacle or None."""
    told = shown(name)
    if not isinstance(value, Tensor):
        return f"{told} is {kind_of(value)} and no tensor"
    if value.odd or value.storage is None or value.dtype is None:
        return f"{told} {value.odd or 'has no data'}"
    if not _is_text(name):
        return f"the name {name!a} is no text that can be written"
    storage, code = value.storage, SAFETENSORS_CODES.get(value.dtype)
    if storage.location == "meta":
        return f"{told} is on the meta device and has no data"
    if code is None:
        return f"{told} is {value.dtype}, which safetensors does not have"
    if storage.key not in work.loaded.storages:
        if work.loaded.obstacle is None:
            work.problems.append(f"{work.path}: the data of {told} (storage {storage.key!r}) is missing.")
        return None
    piece, size = work.loaded.storages[storage.key], item_size(code)
    first = storage.offset * ITEM_SIZES[storage.dtype or "uint8"] + value.offset * size
    count = math.prod(value.shape)
    span = size * (1 + sum((n - 1) * step for n, step in zip(value.shape, value.strides, strict=True))) if count else 0
    if storage.size * ITEM_SIZES[storage.dtype or "uint8"] > piece.size or (count and first + span > piece.size):
        work.problems.append(f"{work.path}: {told} would reach beyond its storage {storage.key!r}.")
        return None
    if count:
        view = (storage.key, first, value.shape, value.strides, code)
        if view in work.views:
            work.aliases[name] = work.views[view]
            return None
        work.views[view] = name
        work.ranges.setdefault(storage.key, []).append((first, first + span, name))
    where = Piece(work.path, piece.offset + (first if count else 0), span, piece.stamp)
    if count and not strided.is_contiguous(value.shape, value.strides):
        if count * size > _MAX_GATHERED or work.gathered + count * size > _MAX_GATHERED_TOGETHER:
            return f"{told} is not contiguous and too large to be put in order ({count * size} bytes)"
        if span > _MAX_GATHERED_TOGETHER:
            return f"{told} is not contiguous and spread over {span} bytes"
        work.gathered += count * size
        work.tensors[name] = StoredTensor(code, value.shape, strided.gather(where, value.shape, value.strides, size))
        return None
    work.tensors[name] = StoredTensor(code, value.shape, where)
    return None


def _overlap(work: _Placing) -> str | None:
    """Two views that share some memory, but are not the same: written apart, they would be apart."""
    for ranges in work.ranges.values():
        ranges.sort()
        for (_, end, name), (start, _, other) in itertools.pairwise(ranges):
            if start < end:
                return f"{shown(name)} and {shown(other)} are different views of the same memory"
    return None


def _device_notes(state: Mapping[str, Any]) -> tuple[str, ...]:
    places = Counter(
        value.storage.location
        for value in state.values()
        if isinstance(value, Tensor) and value.storage is not None and value.storage.location != "cpu"
    )
    return tuple(
        f"{count} tensors were saved on {place!a}; they are packaged for any device." for place, count in places.items()
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name != "__metadata__"
