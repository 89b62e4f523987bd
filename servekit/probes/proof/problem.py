"""What is wrong with the archive, said to its author."""

from __future__ import annotations

import traceback
from pathlib import Path


class ProofError(Exception):
    """What is wrong, what to do, and the evidence."""

    def __init__(self, message: str, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message, self.hint, self.detail = message, hint, detail


def own_frames(error: BaseException) -> str:
    """The traceback, cut to the files of the archive: the frames between are Python's and torch's."""
    here = str(Path.cwd())
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and str(Path(frame.filename).absolute()).startswith(here)
    ]
    head = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join([*head, *traceback.format_exception_only(error)])


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
