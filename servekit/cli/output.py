"""How results look: tables and JSON on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import IO, Any

import click


def progress(message: str) -> None:
    """One line for a person; stderr, so that stdout stays a result.

    Nobody to read it (`2>&1 | head`, a closed terminal) is no reason to leave work, or its clean-up, half done.
    """
    try:
        click.echo(message, err=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: IO[str]) -> None:
    """Point a stream whose reader has left elsewhere, so that the interpreter's last flush is quiet too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, two blanks apart."""
    widths = [max(len(str(row[i])) for row in (headers, *rows)) for i in range(len(headers))]
    for number, row in enumerate((headers, *rows)):
        cells = (str(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)
