"""config/servekit.example.toml is documentation: it must be complete, and what it calls a default must be one."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from toml_keys import TABLES

from servekit import assets
from servekit.domain.model import ImageOptions, ModelSpec, TensorOptions, TextOptions
from servekit.domain.project import RuntimeConfig, parse_project
from servekit.domain.server import DEFAULT_PORT, ServerConfig
from servekit.system.docker import DEFAULT_IMAGE

TEMPLATE = (assets.config() / "servekit.example.toml").read_text(encoding="utf-8")
UNCOMMENTED = re.sub(r"(?m)^# (?=\w+ = |\[)", "", TEMPLATE)

# Shown with an example, since their default is "nothing" or "decided at up".
EXAMPLES = {
    "models": (
        *("name", "weights", "model", "model_args", "handler", "labels", "workers", "extra_files", "example"),
        *("format", "weights_key", "adapter", "keep_fp32", "tolerance", "requirements", "card", "meta"),
    ),
    "models.text": ("task", "max_length", "normalize"),
    "models.tensor": ("input_shape",),
    "server": ("port",),
    "runtime": ("gpus", "image"),
}


def only(table: str) -> str:
    """The template with everything uncommented but the tables that exclude ``table``'s."""
    text = UNCOMMENTED
    for other in {"image", "tensor", "text"} - {table}:
        text = re.sub(rf"(?ms)^\[models\.{other}\].*?(?=^\[)", "", text)
    return text.replace('handler = "image"', f'handler = "{table}"')


def test_as_it_is_written_by_init() -> None:
    project = parse_project(TEMPLATE)
    assert project.models == (ModelSpec("mymodel", weights="weights.pt", model="model.py:MyModel", handler="image"),)
    assert (project.server, project.runtime) == (ServerConfig(), RuntimeConfig())


def test_every_key_is_shown() -> None:
    shown: dict[str, list[str]] = {}
    table = ""
    for line in UNCOMMENTED.splitlines():
        if header := re.match(r"\[+([\w.]+)\]", line):
            table = header[1]
        elif key := re.match(r"(\w+) = ", line):
            shown.setdefault(table, []).append(key[1])
    assert shown.pop("") == ["schema"]
    tables = dict(TABLES, models=tuple(key for key in TABLES["models"] if key not in ("image", "tensor", "text")))
    assert {name: sorted(keys) for name, keys in shown.items()} == {n: sorted(k) for n, k in tables.items()}


@pytest.mark.parametrize(
    ("table", "noun", "default"),
    [
        ("models", lambda p: p.models[0], ModelSpec("")),
        ("models.image", lambda p: p.models[0].image, ImageOptions()),
        ("models.tensor", lambda p: p.models[0].tensor, TensorOptions()),
        ("models.text", lambda p: p.models[0].text, TextOptions()),
        ("server", lambda p: p.server, ServerConfig()),
        ("runtime", lambda p: p.runtime, RuntimeConfig()),
    ],
)
def test_documented_defaults_are_the_defaults(table: str, noun: Any, default: Any) -> None:
    project = parse_project(only(table.partition(".")[2] or "image"))
    values, defaults = dataclasses.asdict(noun(project)), dataclasses.asdict(default)
    for named in (values, defaults):
        named["example"] = named.pop("examples", ())  # one path or several in the file, always several inside
    for key in set(TABLES[table]) - set(EXAMPLES.get(table, ())):
        assert values[key] == defaults[key], f"{table}.{key}"
    for key in EXAMPLES.get(table, ()):
        if key != "handler":
            assert values[key] != defaults[key], f"{table}.{key} shows its default: take it out of EXAMPLES"


def test_defaults_that_are_decided_at_up() -> None:
    project = parse_project(only("image"))
    assert project.server.port == DEFAULT_PORT
    assert project.runtime.image == DEFAULT_IMAGE
