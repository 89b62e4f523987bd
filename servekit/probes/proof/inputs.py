"""What the handler is asked: the archive's examples, or noise of the shape that its options tell."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servekit.probes.proof.served import Request

GARBAGE = Request("garbage", b"\xff\xfe\x00servekit: this is no input of any model\x00\xff", "application/octet-stream")
"""Neither an image, nor JSON, nor an array, nor UTF-8."""
NOISE = "noise"


def requests(examples: Sequence[Mapping[str, str]], section: Mapping[str, Any]) -> list[Request]:
    """One request an example; without examples, noise that a handler of ours takes, or nothing at all."""
    if examples:
        return [Request(e["file"], Path(e["file"]).read_bytes(), e["content_type"]) for e in examples]
    kind = section.get("kind")
    if kind == "image":
        return [_noise_image(section["image"], seed) for seed in (0, 1)]
    if kind == "text":
        return [
            Request(NOISE, text.encode(), "text/plain") for text in ("a short text", "another, somewhat longer text")
        ]
    tensor = section.get("tensor") or {}
    if kind == "tensor" and tensor.get("input_shape") is not None:
        return [_noise_tensor(tensor, seed) for seed in (0, 1)]
    return []


def _noise_image(image: Mapping[str, Any], seed: int) -> Request:
    from PIL import Image

    side = int(image["resize"])
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    buffer = io.BytesIO()
    (picture.convert("L") if image["channels"] == 1 else picture).save(buffer, format="PNG")
    return Request(NOISE, buffer.getvalue(), "image/png")


def _noise_tensor(tensor: Mapping[str, Any], seed: int) -> Request:
    """Normal numbers for floats; for whole numbers 0 and 1, which every vocabulary has."""
    shape, dtype = tuple(tensor["input_shape"]), np.dtype(tensor.get("dtype", "float32"))
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
    return Request(NOISE, json.dumps(np.asarray(values, dtype=dtype).tolist()).encode(), "application/json")
