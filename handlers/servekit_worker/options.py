"""The ``handler:`` section of model-config.yaml as frozen dataclasses. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servekit_worker.errors import SetupError
from servekit_worker.section import Section

SCHEMA = 1
KINDS = ("image", "tensor", "custom")
PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")
FORMATS = ("state_dict", "torchscript")
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")


@dataclass(frozen=True)
class ModelOptions:
    """Where the weights are, relative to the archive's root, and which class takes them.

    ``file`` and ``class_name`` are set for ``state_dict`` and None for ``torchscript``.
    """

    format: str
    weights: str
    file: str | None = None
    class_name: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageOptions:
    """Sizes in pixels, ``crop`` at most ``resize``; mean and std per channel on a 0..1 scale."""

    resize: int
    crop: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    top_k: int


@dataclass(frozen=True)
class TensorOptions:
    """The shape of one item without its batch axis (None: any), and the dtype the model takes."""

    input_shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True)
class Options:
    """The whole section. Paths are relative to the archive's root."""

    kind: str
    precision: str
    threads: int | None
    model: ModelOptions | None
    labels: str | None
    example: str | None
    image: ImageOptions | None
    tensor: TensorOptions | None


def parse(config: Mapping[str, Any] | None) -> Options:
    """Read a model-config.yaml; raise SetupError with every problem of its ``handler:`` section."""
    values = (config or {}).get("handler")
    if values is None:
        raise SetupError("model-config.yaml has no handler: section; package the model again with servekit.")
    problems: list[str] = []
    section = Section(values, "handler", problems)
    _check_schema(section)
    kind = section.choice("kind", KINDS)
    options = Options(
        kind=kind,
        precision=section.choice("precision", PRECISIONS, "auto"),
        threads=section.whole("threads", None),
        model=_model(section.section("model")),
        labels=section.text("labels", None),
        example=section.text("example", None),
        image=_image(section, kind),
        tensor=_tensor(section, kind),
    )
    section.close()
    if problems:
        raise SetupError("model-config.yaml cannot be used:\n" + "\n".join(f"  - {p}" for p in problems))
    return options


def _check_schema(section: Section) -> None:
    schema = section.whole("schema")
    if schema is not None and schema != SCHEMA:
        raise SetupError(
            f"handler.schema is {schema}, but the servekit_worker in this archive reads schema {SCHEMA}; "
            "package the model again with one version of servekit."
        )


def _model(section: Section | None) -> ModelOptions | None:
    if section is None:
        return None
    form = section.choice("format", FORMATS)
    weights = section.text("weights")
    if form == "torchscript":
        section.close()
        return ModelOptions(form, weights)
    file, name, args = section.text("file"), section.text("class"), section.mapping("args")
    section.close()
    return ModelOptions(form, weights, file, name, args)


def _image(parent: Section, kind: str | None) -> ImageOptions | None:
    if kind == "tensor":
        return None  # not taken: close() calls the key unknown
    section = parent.section("image")
    if section is None:
        if kind == "image":
            parent.problems.append("handler.image is missing; kind image needs its sizes and mean and std.")
        return None
    options = ImageOptions(
        resize=section.whole("resize"),
        crop=section.whole("crop"),
        channels=section.whole("channels"),
        mean=section.numbers("mean"),
        std=section.numbers("std"),
        top_k=section.whole("top_k"),
    )
    section.close()
    section.problems += _image_problems(options, section.where)
    return options


def _image_problems(options: ImageOptions, where: str) -> list[str]:
    problems = []
    if options.crop and options.resize and options.crop > options.resize:
        problems.append(f"{where}.crop ({options.crop}) must not be larger than resize ({options.resize}).")
    if options.channels not in (None, 1, 3):
        problems.append(f"{where}.channels is {options.channels}; it must be 1 (grey) or 3 (RGB).")
    for name, values in (("mean", options.mean), ("std", options.std)):
        if values and options.channels in (1, 3) and len(values) != options.channels:
            problems.append(f"{where}.{name} has {len(values)} numbers for {options.channels} channels.")
    if options.std and 0.0 in options.std:
        problems.append(f"{where}.std must not hold 0: pixels are divided by it.")
    return problems


def _tensor(parent: Section, kind: str | None) -> TensorOptions | None:
    if kind == "image":
        return None
    section = parent.section("tensor")
    if section is None:
        return TensorOptions(None, "float32") if kind == "tensor" else None
    options = TensorOptions(section.shape("input_shape", None), section.choice("dtype", DTYPES, "float32"))
    section.close()
    return options
