"""The media type to send a file with."""

from __future__ import annotations

import mimetypes
from pathlib import Path

_OURS = {".npy": "application/octet-stream", ".txt": "text/plain"}


def of(path: Path) -> str:
    """By the name's suffix; TorchServe parses application/json and decodes text/* itself."""
    return _OURS.get(path.suffix.lower()) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
