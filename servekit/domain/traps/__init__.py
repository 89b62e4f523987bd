"""Known traps in a user's handler, found in its syntax tree without running it. Hints, never refusals.

One module a trap; ``names`` tells what a name means in the file at hand.
"""

from __future__ import annotations

import ast

from servekit.domain.traps import activation, device, first_item, import_time
from servekit.domain.traps.names import Names
from servekit.domain.traps.trap import Trap

__all__ = ["Trap", "find"]


def find(source: str, file: str) -> tuple[Trap, ...]:
    """All traps of one file, by line. A file that does not parse has none: another check says so."""
    try:
        tree = ast.parse(source, filename=file)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = Names(tree)
    try:
        found = {
            *first_item.find(tree, names),
            *device.find(tree, names),
            *import_time.find(tree, names),
            *activation.find(tree, names),
        }
    except RecursionError:  # an expression nested a thousand deep is no handler of a person's
        return ()
    return tuple(sorted(found, key=lambda trap: (trap.line, trap.code)))
