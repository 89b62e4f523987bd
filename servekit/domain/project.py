"""servekit.toml: its schema, and its text turned into nouns with every problem found at once."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servekit.domain.model import (
    BUILTIN_HANDLERS,
    FORMATS,
    TASKS,
    ImageOptions,
    ModelSpec,
    TensorOptions,
    TextOptions,
    name_problem,
    precision_problem,
    tolerance_problems,
    version_problem,
)
from servekit.domain.server import PORTS_PER_SERVER, ServerConfig
from servekit.domain.toml_lines import Path, line_of
from servekit.errors import ConfigError, raise_together

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1
FILE = "servekit.toml"
BACKENDS = ("auto", "docker", "local")
MAX_SIDE = 16384
"""pixels"""
MAX_TOP_K = 10_000
DTYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")


@dataclass(frozen=True)
class RuntimeConfig:
    """``[runtime]``: where the server runs. ``gpus`` and ``image`` None mean: decide at ``up``."""

    backend: str = "auto"
    gpus: str | None = None
    image: str | None = None


@dataclass(frozen=True)
class Project:
    models: tuple[ModelSpec, ...] = ()
    server: ServerConfig = field(default_factory=ServerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def model(self, name: str) -> ModelSpec | None:
        return next((model for model in self.models if model.name == name), None)


# key -> (what a value must be, said to a person; the check). bool is an int to Python, not to a user.
def _is_int(low: int, high: int) -> Any:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


def _is_text(v: Any) -> bool:
    return isinstance(v, str) and bool(v)


def _is_texts(v: Any) -> bool:
    return isinstance(v, list) and all(map(_is_text, v))


def _is_numbers(v: Any) -> bool:
    return isinstance(v, list) and bool(v) and all(type(x) in (int, float) and math.isfinite(x) for x in v)


def _is_shape(v: Any) -> bool:
    return isinstance(v, list) and all(_is_int(1, 2**31)(x) for x in v)


_TEXT = ("a text", _is_text)
_BOOL = ("true or false", lambda v: isinstance(v, bool))


def _int(low: int, high: int) -> tuple[str, Any]:
    return (f"a whole number from {low} to {high}", _is_int(low, high))


def _one_of(words: tuple[str, ...]) -> tuple[str, Any]:
    return (f"one of {', '.join(words)}", lambda v: v in words)


_ROOT = {
    "schema": _int(SCHEMA, SCHEMA),
    "models": ("an array of tables, [[models]]", lambda v: isinstance(v, list)),
    "server": ("a table, [server]", lambda v: isinstance(v, dict)),
    "runtime": ("a table, [runtime]", lambda v: isinstance(v, dict)),
}
_MODEL = {
    "name": _TEXT,
    "version": _TEXT,
    "weights": _TEXT,
    "model": _TEXT,
    "model_args": ("a table of keyword arguments", lambda v: isinstance(v, dict)),
    "handler": _TEXT,
    "labels": _TEXT,
    "precision": _TEXT,
    "batch_size": _int(1, 4096),
    "max_batch_delay_ms": _int(1, 600_000),
    "workers": _int(1, 256),
    "extra_files": ("a list of paths", _is_texts),
    "example": ("a path or a list of paths", lambda v: _is_text(v) or (_is_texts(v) and bool(v))),
    "format": _one_of(FORMATS),
    "convert": _BOOL,
    "weights_key": _TEXT,
    "adapter": _TEXT,
    "keep_fp32": ("a list of patterns of module names", _is_texts),
    "requirements": _TEXT,
    "card": _TEXT,
    "meta": (
        "a table of texts and numbers",
        lambda v: isinstance(v, dict) and all(type(x) in (str, int, float, bool) for x in v.values()),
    ),
    "tolerance": (
        "a table of numbers",
        lambda v: isinstance(v, dict) and all(type(x) in (int, float) and math.isfinite(x) for x in v.values()),
    ),
    "text": ("a table, [models.text]", lambda v: isinstance(v, dict)),
    "image": ("a table, [models.image]", lambda v: isinstance(v, dict)),
    "tensor": ("a table, [models.tensor]", lambda v: isinstance(v, dict)),
}
_IMAGE = {
    "resize": _int(1, MAX_SIDE),
    "crop": _int(1, MAX_SIDE),
    "channels": ("1 or 3", lambda v: v in (1, 3) and not isinstance(v, bool)),
    "mean": ("a list of numbers, one a channel", _is_numbers),
    "std": ("a list of numbers above 0, one a channel", lambda v: _is_numbers(v) and all(x > 0 for x in v)),
    "top_k": _int(1, MAX_TOP_K),
}
_TENSOR = {"input_shape": ("a list of whole numbers above 0", _is_shape), "dtype": _one_of(DTYPES)}
_TEXT_TABLE = {
    "task": _one_of(TASKS),
    "max_length": _int(1, 1_000_000),
    "normalize": _BOOL,
    "top_k": _int(1, MAX_TOP_K),
}
_SERVER = {
    "bind": _TEXT,
    "port": _int(1, 65536 - PORTS_PER_SERVER),
    "auth": _BOOL,
    "token_expiration_min": _int(1, 10 * 365 * 24 * 60),
    "job_queue_size": _int(1, 1_000_000),
    "response_timeout_s": _int(1, 86_400),
    "startup_timeout_s": _int(1, 86_400),
    "max_request_mib": _int(1, 2047),
}
_RUNTIME = {"backend": _one_of(BACKENDS), "gpus": _TEXT, "image": _TEXT}


class _Reader:
    """Collects problems, each with its line, while values are taken out."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file, self.problems = text, file, list[str]()

    def problem(self, path: Path, message: str) -> None:
        self.problems.append(f"{self.file}:{line_of(self.text, path)}: {message}")

    def table(self, data: Mapping[str, Any], schema: Mapping[str, tuple[str, Any]], path: Path) -> dict[str, Any]:
        """The keys of ``data`` that are known and right; a problem for each that is not."""
        good: dict[str, Any] = {}
        for key, value in data.items():
            shown = ".".join([*(str(part) for part in path if isinstance(part, str)), key])
            if key not in schema:
                near = difflib.get_close_matches(key, schema, n=1)
                meant = f" Did you mean {near[0]}?" if near else f" Known here: {', '.join(schema)}."
                self.problem((*path, key), f"unknown key {shown}.{meant}")
            elif not schema[key][1](value):
                self.problem((*path, key), f"{shown} must be {schema[key][0]}, not {value!r}.")
            else:
                good[key] = value
        return good


def parse_project(text: str, file: str = FILE) -> Project:
    """servekit.toml as nouns. Raises one ConfigError that carries every problem with its line."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}.", hint="Compare it with: servekit init --print") from None
    except RecursionError:
        raise ConfigError(f"{file} is nested too deeply.", hint="Compare it with: servekit init --print") from None
    reader = _Reader(text, file)
    root = reader.table(data, _ROOT, ())
    if "schema" not in data:
        reader.problems.append(f"{file}:1: schema is missing; write `schema = {SCHEMA}` at the top.")
    models = tuple(
        model
        for position, entry in enumerate(root.get("models", []))
        if (model := _model(reader, entry, position)) is not None
    )
    for position, model in enumerate(models):
        if model.name in {other.name for other in models[:position]}:
            reader.problem(("models", position, "name"), f"two models are called {model.name!r}.")
    server = ServerConfig(**reader.table(root.get("server", {}), _SERVER, ("server",)))
    runtime = RuntimeConfig(**reader.table(root.get("runtime", {}), _RUNTIME, ("runtime",)))
    if not server.auth and not server.loopback:
        reader.problem(
            ("server", "auth"),
            f"server.auth = false with server.bind = {server.bind!r} would let anybody in the network run "
            "the models; keep auth, or bind to 127.0.0.1.",
        )
    raise_together(ConfigError, reader.problems, hint="`servekit init --print` shows every key with its default.")
    return Project(models, server, runtime)


def _model(reader: _Reader, entry: Any, position: int) -> ModelSpec | None:
    path: Path = ("models", position)
    if not isinstance(entry, dict):
        reader.problem(path, f"models must be tables, [[models]], not {entry!r}.")
        return None
    before = len(reader.problems)
    good = reader.table(entry, _MODEL, path)
    for key in ("name", "handler"):
        if key not in entry:
            reader.problem(path, f"this model has no {key}.")
    before_image = len(reader.problems)
    image = ImageOptions(**_tuples(reader.table(good.pop("image", {}), _IMAGE, (*path, "image"))))
    image_is_sound = len(reader.problems) == before_image
    tensor = TensorOptions(**_tuples(reader.table(good.pop("tensor", {}), _TENSOR, (*path, "tensor"))))
    text = TextOptions(**reader.table(good.pop("text", {}), _TEXT_TABLE, (*path, "text")))
    for key, value in good.pop("meta", {}).items():
        good.setdefault("meta", {})[key] = value if isinstance(value, str) else json.dumps(value)
    example = good.pop("example", ())
    good["examples"] = (example,) if isinstance(example, str) else tuple(example)
    for problem in tolerance_problems(good.get("tolerance", {})):
        reader.problem((*path, "tolerance"), problem)
    checks = {"name": name_problem, "version": version_problem, "precision": precision_problem}
    for key, check in checks.items():
        if key in good and (message := check(good[key])):
            reader.problem((*path, key), message)
    for section in BUILTIN_HANDLERS:
        if section in entry and good.get("handler") in BUILTIN_HANDLERS and good["handler"] != section:
            reader.problem((*path, section), f"models.{section} has no effect with handler = {good['handler']!r}.")
    if good.get("handler") == "image" and image_is_sound:  # else defaults stand where the wrong values were
        reader.problems += [
            f"{reader.file}:{line_of(reader.text, (*path, 'image', key))}: {message}"
            for key, message in image_problems(image)
        ]
    if len(reader.problems) > before:
        return None
    return dataclasses.replace(ModelSpec(**_tuples(good)), image=image, tensor=tensor, text=text)


def image_problems(image: ImageOptions) -> list[tuple[str, str]]:
    """Contradictions among image options, as (key, message)."""
    problems = []
    for key, size, most in (
        ("resize", image.resize, MAX_SIDE),
        ("crop", image.crop, MAX_SIDE),
        ("top_k", image.top_k, MAX_TOP_K),
    ):
        if not 1 <= size <= most:
            problems.append((key, f"image.{key} = {size} must be from 1 to {most}."))
    for key, values in (("mean", image.mean), ("std", image.std)):
        if not all(map(math.isfinite, values)):
            problems.append((key, f"image.{key} must hold finite numbers, not {', '.join(map(str, values))}."))
        if len(values) != image.channels:
            problems.append((key, f"image.{key} has {len(values)} numbers for image.channels = {image.channels}."))
    if not all(value > 0 for value in image.std):
        problems.append(("std", "image.std must hold numbers above 0: pixels are divided by it."))
    if image.crop > image.resize:
        problems.append(("crop", f"image.crop = {image.crop} is larger than image.resize = {image.resize}."))
    return problems


def tensor_problems(tensor: TensorOptions) -> list[str]:
    """What the archive's own runtime would refuse of the tensor options."""
    problems = []
    if tensor.dtype not in DTYPES:
        problems.append(f"dtype {tensor.dtype!r} is unknown: choose from {', '.join(DTYPES)}.")
    if tensor.input_shape is not None and not all(size > 0 for size in tensor.input_shape):
        problems.append(f"input_shape {list(tensor.input_shape)} must hold whole numbers above 0.")
    return problems


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Frozen nouns hold tuples, TOML gives lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
