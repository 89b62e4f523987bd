"""Names of classes: ``index_to_name.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from servekit_worker.errors import SetupError


def load(path: Path) -> Mapping[int, str]:
    """Read ``{"0": "zero", ...}``. A list as value means its last entry, as in TorchServe's own files."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"labels {path.name}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SetupError(f"labels {path.name}: not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise SetupError(f'labels {path.name}: must be a JSON object like {{"0": "zero"}}.')
    names: dict[int, str] = {}
    for key, value in values.items():
        name = value[-1] if isinstance(value, list) and value else value
        if not key.isdecimal() or not isinstance(name, str):
            raise SetupError(f"labels {path.name}: {key!r}: {value!r} is not a class index with its name.")
        names[int(key)] = name
    return names
