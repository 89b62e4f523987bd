"""One pickle of a large file: no more of it is read than the pickle takes."""

from __future__ import annotations

import dataclasses
from typing import BinaryIO

from servekit.system.model_files.pickle_machine import MAX_BYTES, Result, follow
from servekit.system.model_files.pickle_values import Malformed, Truncated

_FIRST_WINDOW = 1 << 20


def follow_in_file(file: BinaryIO, start: int, *, script: bool = False, numbered: bool = False) -> Result:
    """The pickle that begins at ``start`` of a large file: no more of the file is read than it takes.

    Up to MAX_BYTES. ``end`` of the result counts from the start of the file.
    """
    window = _FIRST_WINDOW
    while True:
        file.seek(start)
        window = min(window, MAX_BYTES)
        data = file.read(window)
        result = follow(data, script=script, numbered=numbered)
        if not isinstance(result.error, Truncated) or len(data) < window:
            return dataclasses.replace(result, end=start + result.end)
        if window >= MAX_BYTES:
            too_large = Malformed(f"it is larger than {MAX_BYTES} bytes", result.error.offset)
            return dataclasses.replace(result, end=start + result.end, error=too_large)
        window *= 16
