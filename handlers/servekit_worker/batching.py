"""A batch of strangers: one bad item must not cost its neighbours their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from servekit_worker.errors import ItemError
from servekit_worker.items import Item

log = logging.getLogger(__name__)


def serve(
    items: Sequence[Item | ItemError],
    preprocess: Callable[[Item], torch.Tensor],
    infer: Callable[[torch.Tensor], list[Any]],
    collate: Callable[[Sequence[torch.Tensor]], torch.Tensor] = lambda tensors: torch.stack(list(tensors)),
    *,
    ragged: bool = False,
) -> list[Any]:
    """Return one result an item, in order: what ``infer`` gave for it, or the ItemError of a bad one.

    Good items go through ``infer`` in one batch that ``collate`` makes of them; items of another shape or dtype
    make a batch of their own, unless they are ``ragged`` and ``collate`` pads them. An exception of the only batch,
    or of all of them, passes through.
    """
    decoded = [item if isinstance(item, ItemError) else _decode(preprocess, item) for item in items]
    results: list[Any] = list(decoded)
    groups = _together(decoded) if ragged else _by_shape(decoded)
    failed = 0
    for indexes in groups:
        batch = collate([decoded[index] for index in indexes])
        try:
            answers = infer(batch)
        except Exception as error:
            failed += 1
            if failed == len(groups) or _concerns_all(error):
                raise
            shape = list(batch.shape[1:])
            log.warning("servekit: the model failed on items of shape %s", shape, exc_info=True)
            answers = [ItemError(500, f"the model failed on an input of shape {shape}.")] * len(indexes)
        for index, answer in zip(indexes, answers, strict=True):
            results[index] = answer
    return results


def _decode(preprocess: Callable[[Item], torch.Tensor], item: Item) -> torch.Tensor | ItemError:
    try:
        tensor = preprocess(item)
    except ItemError as error:
        return error
    except Exception as error:
        if _concerns_all(error):
            raise
        log.warning("servekit: preprocess failed on one item", exc_info=True)
        return ItemError(500, "the handler could not read this input; the worker's log has the reason.")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"preprocess must return a torch.Tensor, not {type(tensor).__name__}")
    return tensor


def _by_shape(decoded: Sequence[torch.Tensor | ItemError]) -> list[list[int]]:
    groups: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(decoded):
        if isinstance(tensor, torch.Tensor):
            groups.setdefault((tensor.shape, tensor.dtype), []).append(index)
    return list(groups.values())


def _together(decoded: Sequence[torch.Tensor | ItemError]) -> list[list[int]]:
    good = [index for index, tensor in enumerate(decoded) if isinstance(tensor, torch.Tensor)]
    return [good] if good else []


def _concerns_all(error: Exception) -> bool:
    """Out of memory, or a broken CUDA context: TorchServe answers 507 when it sees them."""
    return isinstance(error, MemoryError) or "CUDA" in str(error)
