"""A model to be served: what a user writes in servekit.toml or says in flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")
BUILTIN_HANDLERS = ("image", "tensor", "text")
TASKS = ("embed", "sequence", "token")
FORMATS = ("state_dict", "safetensors", "torchscript", "exported", "aoti", "onnx", "huggingface")

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
class TextOptions:
    """The text handler. None means: as the Hugging Face folder says. ``max_length`` in tokens."""

    task: str | None = None
    max_length: int | None = None
    normalize: bool | None = None
    top_k: int = 5


@dataclass(frozen=True)
class ModelSpec:
    """One model. Paths are as given by the user, relative to the project folder.

    ``workers`` None means one a GPU, or one on the CPU. ``model`` is ``FILE.py:Class``. ``format`` None means:
    as the content of ``weights`` tells. ``convert``: store a state dict as safetensors where nothing is lost.
    ``weights_key``: which part of a checkpoint holds the weights. ``adapter``: a PEFT folder to be merged.
    ``keep_fp32``: patterns of module names that stay in fp32. ``tolerance``: largest relative error a precision,
    and least ``top1``. ``meta`` and ``card`` tell where the model comes from.
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
    examples: tuple[str, ...] = ()
    format: str | None = None
    convert: bool = True
    weights_key: str | None = None
    adapter: str | None = None
    keep_fp32: tuple[str, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    requirements: str | None = None
    meta: Mapping[str, str] = field(default_factory=dict)
    card: str | None = None
    text: TextOptions = field(default_factory=TextOptions)
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


def tolerance_problems(tolerance: Mapping[str, float]) -> list[str]:
    """What is wrong with the limits of the proof."""
    problems = []
    for key, value in tolerance.items():
        if key not in (*PRECISIONS[1:], "top1"):
            problems.append(f"tolerance {key!r} is unknown: choose from {', '.join(PRECISIONS[1:])}, top1.")
        elif not 0 < value <= 1:
            problems.append(f"tolerance {key} = {value:g} must be above 0 and at most 1.")
    return problems
