"""The ``handler:`` section of model-config.yaml as frozen dataclasses. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servekit_worker.errors import SetupError
from servekit_worker.section import Section

SCHEMA = 2
"""Written by this runtime's servekit; 1 is read too, and lacks the keys marked with 2 below."""
KINDS = ("image", "tensor", "text", "custom")
TASKS = ("embed", "sequence", "token")
PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")
FORMATS = ("state_dict", "safetensors", "torchscript", "exported", "aoti", "onnx", "huggingface")
WITH_CLASS = ("state_dict", "safetensors")
"""Tensors alone: a class of the user's takes them."""
ENGINES = ("exported", "aoti", "onnx")
"""Programs that bring their own code, and may have decided their precision."""
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")


@dataclass(frozen=True)
class ModelOptions:
    """Where the weights are, relative to the archive's root, and which class takes them.

    ``file`` and ``class_name`` are set for ``state_dict`` and ``safetensors``, None for formats that carry
    their own code. ``weights`` is a folder for ``huggingface``.
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
class TextOptions:
    """``max_length`` in tokens (None: the model's); ``normalize``: embeddings of length 1; pooling is the mean."""

    task: str
    max_length: int | None
    normalize: bool
    top_k: int


@dataclass(frozen=True)
class Options:
    """The whole section. Paths are relative to the archive's root. ``precision_reason``, ``keep_fp32`` and
    ``examples`` came with schema 2."""

    kind: str
    precision: str
    precision_reason: str | None
    keep_fp32: tuple[str, ...]
    threads: int | None
    model: ModelOptions | None
    labels: str | None
    examples: tuple[str, ...]
    image: ImageOptions | None
    tensor: TensorOptions | None
    text: TextOptions | None

    @property
    def example(self) -> str | None:
        """The first example, which warms the model up; None without any."""
        return self.examples[0] if self.examples else None


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
        precision_reason=section.text("precision_reason", None),
        keep_fp32=section.texts("keep_fp32"),
        threads=section.whole("threads", None),
        model=_model(section.section("model")),
        labels=section.text("labels", None),
        examples=_examples(section),
        image=_image(section, kind),
        tensor=_tensor(section, kind),
        text=_text(section, kind),
    )
    section.close()
    problems += _precision_problems(options)
    if problems:
        raise SetupError("model-config.yaml cannot be used:\n" + "\n".join(f"  - {p}" for p in problems))
    return options


def _check_schema(section: Section) -> None:
    schema = section.whole("schema")
    if schema is not None and schema not in (1, SCHEMA):
        raise SetupError(
            f"handler.schema is {schema}, but the servekit_worker in this archive reads schemas 1 and {SCHEMA}; "
            "package the model again with one version of servekit."
        )


def _model(section: Section | None) -> ModelOptions | None:
    if section is None:
        return None
    form = section.choice("format", FORMATS)
    weights = section.text("weights")
    if form not in WITH_CLASS:
        section.close()
        return ModelOptions(form, weights)
    file, name, args = section.text("file"), section.text("class"), section.mapping("args")
    section.close()
    return ModelOptions(form, weights, file, name, args)


def _examples(section: Section) -> tuple[str, ...]:
    one, many = section.text("example", None), section.texts("examples")
    if one and many:
        section.problems.append(f"{section.where} has both example and examples; keep examples.")
    return many or ((one,) if one else ())


def _precision_problems(options: Options) -> list[str]:
    problems = []
    if options.precision_reason and options.precision == "auto":
        problems.append("handler.precision_reason is for a fixed precision; with auto the worker gives the reason.")
    form = options.model.format if options.model else None
    if options.keep_fp32 and form in (*ENGINES, "torchscript"):
        problems.append(f"handler.keep_fp32 is not available for format {form}: the file's modules cannot be changed.")
    return problems


def _text(parent: Section, kind: str | None) -> TextOptions | None:
    if kind in ("image", "tensor"):
        return None  # not taken: close() calls the key unknown
    section = parent.section("text")
    if section is None:
        if kind == "text":
            parent.problems.append("handler.text is missing; kind text needs its task.")
        return None
    options = TextOptions(
        task=section.choice("task", TASKS),
        max_length=section.whole("max_length", None),
        normalize=section.flag("normalize", False),
        top_k=section.whole("top_k", 5),
    )
    section.choice("pooling", ("mean",), "mean")
    section.close()
    return options


def _image(parent: Section, kind: str | None) -> ImageOptions | None:
    if kind in ("tensor", "text"):
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
    if kind in ("image", "text"):
        return None
    section = parent.section("tensor")
    if section is None:
        return TensorOptions(None, "float32") if kind == "tensor" else None
    options = TensorOptions(section.shape("input_shape", None), section.choice("dtype", DTYPES, "float32"))
    section.close()
    return options
