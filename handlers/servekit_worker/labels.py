"""Names of the classes: index_to_name.json, as TorchServe's own handlers know it."""

from __future__ import annotations

import json
from pathlib import Path


def load(path: Path) -> dict[int, str]:
    """``{"0": "cat"}`` or ImageNet's ``{"0": ["n01440764", "tench"]}`` as {0: name}."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return {int(index): str(name[-1] if isinstance(name, list) else name) for index, name in data.items()}
