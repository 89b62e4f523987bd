"""JPEG and PNG bytes to normalised pixels. The steps and their rounding are those of torchvision."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from servekit_worker.errors import ItemError

_FORMATS = ("JPEG", "PNG")
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def decode(body: Any, channels: int) -> Image.Image:
    """An upright image of mode RGB (3 channels) or L (1). Transparency is dropped.

    Raises ItemError: 415 for what is no JPEG or PNG, 400 for a damaged one, 413 above Pillow's pixel limit.
    """
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise ItemError(
            415,
            f"expected the bytes of a JPEG or PNG image, got {type(body).__name__}: send it with "
            "Content-Type image/png, image/jpeg or application/octet-stream.",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(body), formats=_FORMATS)
    except _BOMBS as error:
        raise ItemError(413, f"the image has too many pixels: more than {Image.MAX_IMAGE_PIXELS}.") from error
    except UnidentifiedImageError as error:
        raise ItemError(415, "not a JPEG or PNG image.") from error
    except Exception as error:  # Pillow's parsers raise many kinds on hostile bytes
        raise _damaged(error) from error
    try:
        return _to_mode(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
    except MemoryError:
        raise
    except Exception as error:
        raise _damaged(error) from error


def fit(image: Image.Image, resize: int, crop: int) -> Image.Image:
    """Scale the short side to ``resize`` (bilinear, antialiased), then cut the middle ``crop`` x ``crop``.

    An image whose short side is ``resize`` already is not resampled: its pixels stay exactly as they are.
    """
    width, height = image.size
    if min(width, height) != resize:
        if width <= height:
            width, height = resize, int(resize * height / width)
        else:
            width, height = int(resize * width / height), resize
        if Image.MAX_IMAGE_PIXELS and width * height > Image.MAX_IMAGE_PIXELS:
            raise ItemError(413, f"the image is too narrow: scaled, it would be {width} x {height} pixels.")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - crop) / 2), round((height - crop) / 2)
    return image.crop((left, top, left + crop, top + crop))


def to_tensor(image: Image.Image, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """float32 [channels, height, width]: pixels on a 0..1 scale, less ``mean``, over ``std``."""
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    planes = (pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)).contiguous().float().div(255)
    return (planes - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):
        # 16-bit grey. Pillow's own conversion clips at 255 and would answer with a white image.
        deep = np.asarray(image, dtype=np.uint32)
        image = Image.fromarray((deep // 257).astype(np.uint8))
    return image.convert(mode)


def _damaged(error: Exception) -> ItemError:
    return ItemError(400, f"the image is damaged: {error}.")
