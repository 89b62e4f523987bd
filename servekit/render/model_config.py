"""ModelSpec -> the model-config.yaml inside its archive (docs/architecture/00-overview.md)."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from servekit.domain.model import ModelSpec
from servekit.domain.server import ServerConfig

HANDLER_SCHEMA = 2


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where the parts of a model lie inside its archive; None for a part it does not have."""

    weights: str | None = None
    weights_format: str | None = None
    model_file: str | None = None
    labels: str | None = None
    examples: tuple[str, ...] = ()


def model_config(spec: ModelSpec, placed: Placed) -> dict[str, Any]:
    """TorchServe's keys for whoever serves the archive without servekit, and our handler's section."""
    defaults = ServerConfig()
    workers = spec.workers or 1
    return {
        "minWorkers": workers,
        "maxWorkers": workers,
        "batchSize": spec.batch_size,
        "maxBatchDelay": spec.max_batch_delay_ms,
        "responseTimeout": defaults.response_timeout_s,
        "startupTimeout": defaults.startup_timeout_s,
        "handler": _handler(spec, placed),
        **({"proof": {"tolerance": dict(sorted(spec.tolerance.items()))}} if spec.tolerance else {}),
    }


def to_yaml(config: dict[str, Any]) -> str:
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _handler(spec: ModelSpec, placed: Placed) -> dict[str, Any]:
    kind = spec.handler if spec.builtin_handler else "custom"
    section: dict[str, Any] = {"schema": HANDLER_SCHEMA, "kind": kind, "precision": spec.precision}
    if placed.weights:
        model: dict[str, Any] = {"format": placed.weights_format, "weights": placed.weights}
        if placed.model_file:
            model |= {"file": placed.model_file, "class": spec.model_class, "args": dict(spec.model_args)}
        section["model"] = model
    if spec.keep_fp32:
        section["keep_fp32"] = list(spec.keep_fp32)
    if placed.labels:
        section["labels"] = placed.labels
    if placed.examples:
        section["examples"] = list(placed.examples)
    if kind == "image":
        section["image"] = _plain(spec.image)
    if kind == "tensor":
        section["tensor"] = _plain(spec.tensor)
    if kind == "text":
        section["text"] = {**_plain(spec.text), "pooling": "mean"}
    return section


def _plain(options: Any) -> dict[str, Any]:
    """A dataclass of numbers and tuples as YAML knows it."""
    values = dataclasses.asdict(options)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
