"""Class names: a text file with one a line, or JSON in the shapes that are around."""

from __future__ import annotations

import json
from pathlib import Path

from servekit.errors import ModelError


def read(path: Path) -> dict[str, str]:
    """``{"0": "cat", ...}`` from .txt (one a line), or .json: a list, {"0": "cat"} or {"0": ["n01", "cat"]}."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"labels: {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"labels: {path} is not UTF-8 text.") from error
    if path.suffix.lower() != ".json":
        names = [line.strip() for line in text.splitlines()]
        while names and not names[-1]:
            names.pop()
        if not names:
            raise ModelError(f"labels: {path} is empty.", hint="Write one class name a line, class 0 first.")
        return {str(index): name for index, name in enumerate(names)}
    try:
        data = json.loads(text)
        pairs = enumerate(data) if isinstance(data, list) else data.items()
        return {_index(index): _name(name) for index, name in pairs}
    except (ValueError, AttributeError, IndexError, RecursionError) as error:
        raise ModelError(
            f"labels: {path} is neither a JSON list of names nor an object of index to name.",
            hint='Write ["cat", "dog"] or {"0": "cat", "1": "dog"}.',
        ) from error


def _index(value: int | str) -> str:
    if int(value) < 0:
        raise ValueError(f"{value} is not the index of a class")
    return str(int(value))


def _name(value: object) -> str:
    """A text, or the last of a list of texts, as in ImageNet's ``["n01440764", "tench"]``."""
    name = value[-1] if isinstance(value, list) else value
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is not a name")
    return name
