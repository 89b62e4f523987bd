"""Tensors that still lie in the file they came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servekit.system.archives.zipstream import Piece
from servekit.system.model_files.pickle_values import Storage


@dataclass(frozen=True)
class StoredTensor:
    """``dtype``: code of safetensors. ``source``: its elements, little-endian and row by row, without gaps.

    Bytes from memory for those that do not lie like that in the file and had to be put in order.
    """

    dtype: str
    shape: tuple[int, ...]
    source: Piece | bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.size


@dataclass(frozen=True)
class Checkpoint:
    """A state dict, found in a file. ``notes`` are sentences about what was taken and what was left out.

    ``aliases``: name -> the name in ``tensors`` that it shares its memory with. ``obstacle``: why it cannot
    become a safetensors file, so that the original has to be kept; ``tensors`` lacks what is in the way then.
    ``unwrapped``: it was a part of what the file holds.
    """

    tensors: Mapping[str, StoredTensor]
    notes: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    obstacle: str | None = None
    unwrapped: bool = False


@dataclass(frozen=True)
class Loaded:
    """What torch.save wrote: the inert object, and where the bytes of each storage lie in the file.

    ``mentioned`` are all storages by key. ``obstacle`` as in Checkpoint.
    """

    value: Any
    storages: Mapping[str, Piece]
    mentioned: Mapping[str, Storage]
    obstacle: str | None = None
