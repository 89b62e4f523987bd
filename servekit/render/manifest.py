"""ModelSpec -> MAR-INF/MANIFEST.json, with the field names of torch-model-archiver's manifest classes."""

from __future__ import annotations

import json

# The fields carry a creation time; a fixed one keeps the same input the same bytes.
_CREATED = "01/01/1980 00:00:00"
ARCHIVER_VERSION = "0.12.0"
"""The manifest format of this torch-model-archiver; a contract test compares with the real one."""


def manifest(
    *,
    name: str,
    version: str,
    handler: str,
    serialized_file: str | None,
    model_file: str | None,
    config_file: str,
) -> str:
    """The manifest's text. All arguments but the names are basenames inside the archive."""
    model = {
        "modelName": name,
        "serializedFile": serialized_file,
        "handler": handler,
        "modelFile": model_file,
        "modelVersion": version,
        "configFile": config_file,
    }
    return (
        json.dumps(
            {
                "createdOn": _CREATED,
                "runtime": "python",
                "model": {key: value for key, value in model.items() if value},
                "archiverVersion": ARCHIVER_VERSION,
            },
            indent=2,
            ensure_ascii=False,
        )
        + "\n"
    )
