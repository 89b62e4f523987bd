"""Texts that a person has read and found right, kept in tests/golden/ and compared exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Golden = Callable[[str, str], None]
"""``golden(name, text)``: ``text`` is exactly what tests/golden/<name> holds."""

FOLDER = Path(__file__).parent / "golden"
