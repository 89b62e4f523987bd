"""The ``handler:`` section of model-config.yaml, read strictly: an unknown key is an error, not a shrug."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class ModelOptions:
    """Where the weights are and what they are for. ``file`` and ``class_name`` only for a state dict."""

    format: str
    weights: str
    file: str | None = None
    class_name: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageOptions:
    """Sizes in pixels; ``mean`` and ``std`` per channel on a 0..1 scale."""

    resize: int = 256
    crop: int = 224
    channels: int = 3
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    top_k: int = 5


@dataclass(frozen=True)
class TensorOptions:
    """The shape of one item, without the batch axis; None takes any."""

    input_shape: tuple[int, ...] | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class HandlerOptions:
    """Everything a handler is told. ``threads`` (intra-op) comes from the deployment."""

    schema: int = SCHEMA
    kind: str = "custom"
    precision: str = "auto"
    threads: int = 1
    model: ModelOptions | None = None
    labels: str | None = None
    example: str | None = None
    image: ImageOptions = field(default_factory=ImageOptions)
    tensor: TensorOptions = field(default_factory=TensorOptions)


def read(config: Mapping[str, Any] | None) -> HandlerOptions:
    """Options out of ``context.model_yaml_config``. ValueError names every problem at once."""
    section = dict((config or {}).get("handler") or {})
    problems: list[str] = []
    if section.get("schema", SCHEMA) != SCHEMA:
        problems.append(f"handler.schema is {section['schema']!r}; the runtime in this archive reads {SCHEMA}")
    model = section.pop("model", None)
    image = section.pop("image", None) or {}
    tensor = section.pop("tensor", None) or {}
    options = _build(HandlerOptions, section, "handler", problems)
    nested = {
        "model": _build(ModelOptions, _renamed(model), "handler.model", problems) if model else None,
        "image": _build(ImageOptions, image, "handler.image", problems),
        "tensor": _build(TensorOptions, tensor, "handler.tensor", problems),
    }
    if problems:
        raise ValueError("model-config.yaml: " + "; ".join(problems))
    return dataclasses.replace(options, **nested)


def _renamed(model: Mapping[str, Any]) -> dict[str, Any]:
    """``class`` is a word of Python's."""
    return {("class_name" if key == "class" else key): value for key, value in model.items()}


def _build(noun: Any, values: Mapping[str, Any], where: str, problems: list[str]) -> Any:
    known = {entry.name for entry in dataclasses.fields(noun)}
    unknown = sorted(set(values) - known)
    problems += [f"unknown key {where}.{key} (known: {', '.join(sorted(known))})" for key in unknown]
    kept = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key in known}
    try:
        return noun(**kept)
    except TypeError as error:  # a required key is missing
        problems.append(f"{where}: {error}")
        return None
