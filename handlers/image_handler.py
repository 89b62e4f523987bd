"""Images in, classes out.

Request: the bytes of a JPEG or PNG as the body, or as the form field ``data``.
Answer: ``{"predictions": [{"index": 7, "label": "seven", "score": 0.98}, ...]}``, best first.
A body that is no image answers 415, one with too many pixels 413; its neighbours in the batch are served.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from servekit_worker import labels
from servekit_worker.batching import ItemError
from servekit_worker.serving import ModelHandler


class ImageHandler(ModelHandler):
    """Resize (short side, antialiased), crop the centre, normalise; softmax and top-k."""

    def prepare(self) -> None:
        image = self.options.image
        self.labels = labels.load(self.folder / self.options.labels) if self.options.labels else {}
        # (C, 1, 1), to broadcast over a (C, H, W) image
        self.mean = torch.tensor(image.mean).view(-1, 1, 1)
        self.std = torch.tensor(image.std).view(-1, 1, 1)
        if not self.limit_image_pixels:
            Image.MAX_IMAGE_PIXELS = None

    def preprocess(self, item: Any) -> torch.Tensor:
        """Encoded bytes -> (C, crop, crop) float32, normalised."""
        if not isinstance(item, (bytes, bytearray)):
            raise ItemError(415, "the body is not an image: send JPEG or PNG bytes")
        picture = self._decode(bytes(item))
        # (H, W) or (H, W, C) of uint8
        pixels = torch.from_numpy(np.array(self._fit(picture), dtype=np.uint8))
        planes = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        return (planes.float() / 255.0 - self.mean) / self.std

    def postprocess(self, outputs: Any) -> list[Any]:
        """Logits (N, classes) -> N answers."""
        scores = torch.softmax(outputs.float(), dim=1)
        top = scores.topk(min(self.options.image.top_k, scores.shape[1]), dim=1)
        return [
            self._answer(values, indexes)
            for values, indexes in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]

    def example(self) -> Any:
        """The archive's example, else a grey square: the shape is known either way."""
        body = super().example()
        if body is None:
            buffer = io.BytesIO()
            side = self.options.image.resize
            Image.new("RGB", (side, side), (127, 127, 127)).save(buffer, format="PNG")
            body = buffer.getvalue()
        return body

    def _decode(self, body: bytes) -> Image.Image:
        mode = "L" if self.options.image.channels == 1 else "RGB"
        try:
            picture = Image.open(io.BytesIO(body), formats=("JPEG", "PNG"))
            return ImageOps.exif_transpose(picture).convert(mode)
        except Image.DecompressionBombError as error:
            raise ItemError(413, f"the image has too many pixels: {error}") from error
        except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises for broken files
            raise ItemError(415, "the body is not a JPEG or PNG image, or it is damaged") from error

    def _fit(self, picture: Image.Image) -> Image.Image:
        """Short side to ``resize``, then the centre square of ``crop``; a fitting image is left as it is."""
        resize, crop = self.options.image.resize, self.options.image.crop
        width, height = picture.size
        if min(width, height) != resize:
            scale = resize / min(width, height)
            size = (max(resize, round(width * scale)), max(resize, round(height * scale)))
            if math.prod(size) > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise ItemError(413, f"the image is {width}x{height}: too narrow to be resized to {resize}")
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        width, height = picture.size
        left, top = round((width - crop) / 2), round((height - crop) / 2)
        return picture.crop((left, top, left + crop, top + crop))

    def _answer(self, scores: list[float], indexes: list[int]) -> Any:
        if not all(map(math.isfinite, scores)):
            return ItemError(500, "the model's output is not finite (NaN or infinity) for this item")
        return {
            "predictions": [
                {"index": index, "label": self.labels.get(index, str(index)), "score": score}
                for score, index in zip(scores, indexes, strict=True)
            ]
        }
