"""Model outputs: from a batch on the device to one answer an item."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from servekit_worker.errors import ItemError

JSON = "application/json"


def split(outputs: Any) -> list[Any]:
    """Cut ``outputs`` into items on the CPU, as many as its first tensor's first axis is long.

    A tensor [n, ...] gives n tensors [...]; tuples, lists and mappings of tensors give lists and dicts
    of them. bf16 and fp16 become fp32, which NumPy and JSON know.
    """
    count = _count(outputs)
    if count is None:
        raise TypeError(f"the model gave {type(outputs).__name__}, not tensors; override postprocess(outputs).")
    return _cut(outputs, count)


def _count(outputs: Any) -> int | None:
    if isinstance(outputs, torch.Tensor):
        return outputs.shape[0] if outputs.dim() else 0
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if isinstance(outputs, (tuple, list)):
        return next((count for count in map(_count, outputs) if count is not None), None)
    return None


def _cut(outputs: Any, count: int) -> list[Any]:
    if isinstance(outputs, torch.Tensor):
        if outputs.dim() == 0 or outputs.shape[0] != count:
            raise ValueError(
                f"the model gave an output of shape {list(outputs.shape)}: the first axis of every output "
                "must be the batch; else override postprocess(outputs)."
            )
        half = outputs.dtype in (torch.float16, torch.bfloat16)
        return list((outputs.float() if half else outputs).cpu())
    if isinstance(outputs, Mapping):
        columns = {str(key): _cut(value, count) for key, value in outputs.items()}
        return [{key: column[i] for key, column in columns.items()} for i in range(count)]
    if isinstance(outputs, (tuple, list)):
        parts = [_cut(value, count) for value in outputs]
        return [[part[i] for part in parts] for i in range(count)]
    if outputs is None:
        return [None] * count
    raise TypeError(f"the model gave {type(outputs).__name__} among its outputs; override postprocess(outputs).")


def to_json(result: Any) -> str:
    """JSON text of ``result``, tensors as nested lists; ItemError 500 for NaN and infinity."""
    try:
        return json.dumps(result, allow_nan=False, default=_plain)
    except ValueError as error:
        raise ItemError(500, "the model's output holds NaN or infinity, which JSON cannot say.") from error


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"an answer holds {type(value).__name__}, which is not JSON; change postprocess(outputs).")
