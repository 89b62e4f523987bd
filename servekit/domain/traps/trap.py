"""A trap: where it is, what happens in TorchServe, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trap:
    """``code`` names the kind; ``line`` counts from 1."""

    code: str
    line: int
    message: str
    hint: str
