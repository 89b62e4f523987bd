"""Tensors in, tensors out.

Request: one item, without the batch axis, as a JSON list (``application/json``) or as the bytes of a
``.npy`` file. Answer: the model's output for the item as nested JSON lists. A malformed item, or one of
another shape than ``input_shape``, answers 400; its neighbours in the batch are served.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import torch

from servekit_worker.batching import ItemError
from servekit_worker.serving import ModelHandler

_NPY_MAGIC = b"\x93NUMPY"


class TensorHandler(ModelHandler):
    """JSON or .npy -> tensor -> model -> JSON."""

    def prepare(self) -> None:
        self.dtype = getattr(torch, self.options.tensor.dtype)

    def preprocess(self, item: Any) -> torch.Tensor:
        """One body -> a tensor of ``input_shape`` (any shape when that is not given)."""
        tensor = self._read(item)
        wanted = self.options.tensor.input_shape
        if wanted is not None and tuple(tensor.shape) != wanted:
            raise ItemError(400, f"the item has shape {list(tensor.shape)}; this model takes {list(wanted)}")
        return tensor

    def postprocess(self, outputs: Any) -> list[Any]:
        """Each item's slice of the output: a tensor, or a tuple, list or dict of them."""
        count = _length(outputs)
        return [_slice(outputs, position) for position in range(count)]

    def example(self) -> Any:
        """The archive's example, else zeros of ``input_shape``."""
        body = super().example()
        shape = self.options.tensor.input_shape
        if body is None and shape is not None:
            body = np.zeros(shape).tolist()
        return body

    def _read(self, item: Any) -> torch.Tensor:
        if isinstance(item, (bytes, bytearray)) and bytes(item[:6]) == _NPY_MAGIC:
            try:
                array = np.load(io.BytesIO(item), allow_pickle=False)
                return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape).to(self.dtype)
            except (ValueError, EOFError, OSError, TypeError) as error:
                raise ItemError(400, f"the body is not a usable .npy file: {error}") from error
        try:
            value = json.loads(item) if isinstance(item, (bytes, bytearray, str)) else item
        except (ValueError, UnicodeDecodeError) as error:
            raise ItemError(400, f"the body is neither JSON nor .npy: {error}") from error
        if not isinstance(value, (list, int, float)) or isinstance(value, bool):
            raise ItemError(400, f"the body must be a JSON list of numbers, not {type(value).__name__}")
        try:
            return torch.tensor(value, dtype=self.dtype)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise ItemError(400, f"the JSON is not a regular list of numbers: {error}") from error


def _length(outputs: Any) -> int:
    if isinstance(outputs, torch.Tensor):
        return outputs.shape[0]
    parts = list(outputs.values()) if isinstance(outputs, dict) else list(outputs)
    return _length(parts[0])


def _slice(outputs: Any, position: int) -> Any:
    if isinstance(outputs, torch.Tensor):
        item = outputs[position]
        if item.is_floating_point():
            item = item.float()
            if not torch.isfinite(item).all():
                return ItemError(500, "the model's output is not finite (NaN or infinity) for this item")
        return item.cpu().tolist()
    pairs = outputs.items() if isinstance(outputs, dict) else enumerate(outputs)
    sliced = {key: _slice(part, position) for key, part in pairs}
    error = next((part for part in sliced.values() if isinstance(part, ItemError)), None)
    return error or (sliced if isinstance(outputs, dict) else list(sliced.values()))
