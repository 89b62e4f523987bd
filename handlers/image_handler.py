"""Image classification: JPEG or PNG bytes in, the most likely classes out.

Request: the image's bytes as the body, or as the form field ``data``.
Answer:  {"predictions": [{"label": "seven", "index": 7, "score": 0.98}, ...]}, best first, ``top_k`` of
         them. ``score`` is the softmax of the model's output [n, classes]; ``label`` is the index as text
         where the labels have no name for it.
Errors:  400 empty or damaged, 413 too many pixels, 415 no JPEG or PNG; for that item alone.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image

from servekit_worker import answers, images
from servekit_worker.errors import SetupError
from servekit_worker.items import Item
from servekit_worker.options import ImageOptions
from servekit_worker.serving import ModelHandler


class ImageHandler(ModelHandler):
    """Upright, scaled, cropped and normalised pixels [channels, crop, crop] in; top-k classes out."""

    def initialize(self, context: Any) -> None:
        if not context.system_properties.get("limit_max_image_pixels", True):
            Image.MAX_IMAGE_PIXELS = None  # limit_max_image_pixels=false in config.properties
        super().initialize(context)

    def preprocess(self, item: Item) -> torch.Tensor:
        image = self._image
        pixels = images.fit(images.decode(item.body, image.channels), image.resize, image.crop)
        return images.to_tensor(pixels, image.mean, image.std)

    def postprocess(self, outputs: Any) -> list[Any]:
        if not isinstance(outputs, torch.Tensor) or outputs.dim() != 2:
            found = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            raise TypeError(f"the image handler needs model outputs [batch, classes], but got {found}")
        scores = outputs.float().softmax(dim=1)
        best = scores.topk(min(self._image.top_k, scores.shape[1]), dim=1)
        return [
            {"predictions": [self._prediction(index, score) for index, score in zip(*row, strict=True)]}
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def compare(self, a: Any, b: Any) -> dict[str, Any]:
        """How far answer ``b`` is from the reference ``a``: scores class by class, and the best class."""
        return answers.by_class(a["predictions"], b["predictions"])

    def sample(self) -> torch.Tensor:
        """A black image."""
        image = self._image
        black = Image.new("L" if image.channels == 1 else "RGB", (image.crop, image.crop))
        return images.to_tensor(black, image.mean, image.std)

    @property
    def _image(self) -> ImageOptions:
        if self.options.image is None:
            raise SetupError(f"image_handler.py serves kind image, but handler.kind is {self.options.kind}.")
        return self.options.image

    def _prediction(self, index: int, score: float) -> dict[str, Any]:
        return {"label": self.labels.get(index, str(index)), "index": index, "score": score}
