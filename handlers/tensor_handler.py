"""Numbers in, numbers out: JSON lists or .npy files.

Request: one item without batch axis, as a JSON list (Content-Type application/json) or as the bytes of a
         .npy file. Items of different shapes are batched by shape when ``input_shape`` is null.
Answer:  the model's output for that item as JSON lists (a tuple as a list of them, a dict as an object),
         or a .npy file when the request says ``Accept: application/x-npy`` and the output is one tensor.
Errors:  400 wrong shape, ragged, not numbers or out of range; 406 no .npy possible; 415 neither JSON nor
         .npy; 500 NaN or infinity in a JSON answer; for that item alone.
"""

from __future__ import annotations

from typing import Any

import torch

from servekit_worker import tensors
from servekit_worker.errors import SetupError
from servekit_worker.items import Item
from servekit_worker.options import TensorOptions
from servekit_worker.serving import ModelHandler


class TensorHandler(ModelHandler):
    """The model's forward pass over HTTP; the outputs are the base class's."""

    def preprocess(self, item: Item) -> torch.Tensor:
        return tensors.decode(item.body, self._tensor.dtype, self._tensor.input_shape)

    def encode(self, result: Any, item: Item) -> tuple[str | bytes, str | None]:
        if tensors.NPY in item.headers.get("accept", ""):
            return tensors.to_npy(result), tensors.NPY
        return super().encode(result, item)

    def sample(self) -> torch.Tensor | None:
        """Zeros of the configured shape."""
        shape = self._tensor.input_shape
        return None if shape is None else torch.zeros(shape, dtype=getattr(torch, self._tensor.dtype))

    @property
    def _tensor(self) -> TensorOptions:
        if self.options.tensor is None:
            raise SetupError(f"tensor_handler.py serves kind tensor, but handler.kind is {self.options.kind}.")
        return self.options.tensor
