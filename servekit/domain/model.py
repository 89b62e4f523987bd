"""A model to be served: what a user writes in servekit.toml or says in flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")
BUILTIN_HANDLERS = ("image", "tensor")

# TorchServe puts names into URLs, worker names and log lines; this is what survives all of them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class ImageOptions:
    """Preprocessing of the image handler. Sizes in pixels; mean and std per channel, on a 0..1 scale."""

    resize: int = 256
    crop: int = 224
    channels: int = 3
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    top_k: int = 5


@dataclass(frozen=True)
class TensorOptions:
    """Input of the tensor handler: the shape of one item (no batch axis) and its dtype."""

    input_shape: tuple[int, ...] | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class ModelSpec:
    """One model. Paths are as given by the user, relative to the project folder.

    ``workers`` None means one a GPU, or one on the CPU. ``model`` is ``FILE.py:Class``.
    """

    name: str
    version: str = "1.0"
    weights: str | None = None
    model: str | None = None
    model_args: Mapping[str, Any] = field(default_factory=dict)
    handler: str = "tensor"
    labels: str | None = None
    precision: str = "auto"
    batch_size: int = 8
    max_batch_delay_ms: int = 5
    workers: int | None = None
    extra_files: tuple[str, ...] = ()
    example: str | None = None
    image: ImageOptions = field(default_factory=ImageOptions)
    tensor: TensorOptions = field(default_factory=TensorOptions)

    @property
    def builtin_handler(self) -> bool:
        return self.handler in BUILTIN_HANDLERS

    @property
    def model_file(self) -> str | None:
        return self.model.rpartition(":")[0] if self.model else None

    @property
    def model_class(self) -> str | None:
        return self.model.rpartition(":")[2] if self.model else None


def name_problem(name: str) -> str | None:
    """Why TorchServe would mishandle a model of this name, or None."""
    if not name:
        return "a model needs a name."
    if name.lower().startswith("token"):
        return (
            f"{name!r} cannot be a model name: TorchServe takes every management request whose text holds "
            "'/token' for its token API, so this model could never be described or scaled."
        )
    if not _NAME.fullmatch(name):
        return (
            f"{name!r} cannot be a model name: TorchServe puts it into URLs and file names. Use letters, "
            "digits, '_', '.' and '-', starting with a letter or digit, at most 128 characters."
        )
    return None


def version_problem(version: str) -> str | None:
    """Why TorchServe would mishandle this version, or None."""
    if _VERSION.fullmatch(version):
        return None
    return (
        f"{version!r} cannot be a version: use letters, digits, '_', '.' and '-', "
        "starting with a letter or digit, at most 64 characters."
    )


def precision_problem(precision: str) -> str | None:
    if precision in PRECISIONS:
        return None
    return f"precision {precision!r} is unknown: choose from {', '.join(PRECISIONS)}."
