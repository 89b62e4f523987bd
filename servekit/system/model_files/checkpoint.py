"""Read a state dict out of a file without torch, and hand it on as safetensors without copying it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from servekit.errors import ModelError, raise_together
from servekit.system.archives.zipstream import Pieces
from servekit.system.model_files import checkpoint_legacy, checkpoint_zip, pickles, safetensors_file, zip_members
from servekit.system.model_files.checkpoint_tensors import place
from servekit.system.model_files.checkpoint_unwrap import SAVE_ANEW, unwrap
from servekit.system.model_files.pickle_machine import Result
from servekit.system.model_files.pickle_values import Built, shown
from servekit.system.model_files.stored_tensor import Checkpoint, Loaded, StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "load", "read", "safetensors", "whole_module"]

_HEAD = 512


def read(path: Path, key: str | None = None) -> Checkpoint:
    """The one state dict of ``path``: of torch.save (zip or older) or safetensors.

    ``key`` chooses among several (``--weights-key``), as a dotted path. Nothing in the file is executed, and no
    tensor read that lies in order. ModelError for a file that is none of these or is damaged, that mentions
    names outside the list, holds a whole module, or holds no state dict or several.
    """
    try:
        if is_safetensors(path):
            if key is not None:
                raise ModelError(f"{path} is safetensors, which has no parts to choose from: leave out --weights-key.")
            return safetensors_file.read(path)
        result, loaded = load(path)
        check(result, path)
        state, notes = unwrap(loaded.value, key, path)
        found = place(state, loaded, path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    return dataclasses.replace(found, notes=(*notes, *found.notes), unwrapped=bool(notes))


def load(path: Path) -> tuple[Result, Loaded]:
    """What torch.save wrote, not judged yet. ModelError when it was not torch.save. OSError."""
    head = _head(path)
    if head[:4] == zip_members.MAGIC:
        return checkpoint_zip.load(path)
    if pickles.is_tar(head):
        raise ModelError(f"{path} was written by torch 0.1, as a tar; no torch since 2.6 loads it.", hint=SAVE_ANEW)
    if not pickles.looks_like_pickle(head):
        raise ModelError(f"{path} is not a file of torch.save (it starts with {head[:8]!r}).", hint=SAVE_ANEW)
    return checkpoint_legacy.load(path)


def check(result: Result, path: Path) -> None:
    """ModelError for a whole module, for names outside the list, and for what cannot be followed."""
    if (name := whole_module(result)) is not None:
        raise ModelError(
            f"{path} is a whole module, pickled: loading it runs code of whoever made it (class {shown(name)}).",
            hint="Where you trust it: torch.save(torch.load(FILE, weights_only=False).state_dict(), 'weights.pt'), "
            "then package with --model FILE.py:Class.",
        )
    raise_together(ModelError, pickles.refusals(result, str(path)), hint=pickles.HINT)
    if isinstance(result.value, Built):
        raise ModelError(f"{path} is TorchScript, which carries its own class: there is no state dict to take out.")


def whole_module(result: Result) -> str | None:
    """The class of the object, when a pickle is one of a class that is not torch's; None otherwise."""
    value = result.value
    return value.of if isinstance(value, Built) and not value.of.startswith("__torch__") else None


def is_legacy(path: Path) -> bool:
    """Whether a pickle is torch.save's of before 1.6. OSError."""
    return checkpoint_legacy.begins(path)


def is_safetensors(path: Path) -> bool:
    """By content. OSError."""
    return pickles.is_safetensors(_head(path), path.stat().st_size)


def safetensors(checkpoint: Checkpoint, rename: Mapping[str, str]) -> Pieces:
    """The content of a safetensors file; see :func:`servekit.system.model_files.safetensors_file.pieces`."""
    return safetensors_file.pieces(checkpoint, rename)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)
