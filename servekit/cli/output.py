"""How results look: tables and JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click


def progress(message: str) -> None:
    """One line of progress for a person; stderr, so that stdout stays a result."""
    click.echo(message, err=True)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, two blanks apart."""
    widths = [max(len(str(row[i])) for row in (headers, *rows)) for i in range(len(headers))]
    for number, row in enumerate((headers, *rows)):
        cells = (str(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)
