"""Where a key stands in a TOML text. tomllib gives no positions, and a person wants a line number.

Only finds; never validates: tomllib has accepted the text before. A key inside an inline table, or any
it cannot place, is answered with the line of the nearest table or key around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Path = tuple["str | int", ...]
"""Keys and array positions from the root, as in ``("models", 0, "image", "crop")``."""

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, path: Path) -> int:
    """1-based line of ``path``, or of its closest ancestor that has one; 1 for the root."""
    places: dict[Path, int] = {}
    for place, line in _places(text):
        places.setdefault(place, line)
    for length in range(len(path), 0, -1):
        if path[:length] in places:
            return places[path[:length]]
    return 1


def _places(text: str) -> Iterator[tuple[Path, int]]:
    counts: dict[Path, int] = {}
    table: Path = ()
    closing = ""
    # Not splitlines: it also breaks at characters that TOML allows inside a line.
    for number, line in enumerate(text.split("\n"), start=1):
        if closing:  # inside a multi-line string: nothing there is a key
            closing = "" if closing in line else closing
            continue
        if line.lstrip().startswith("#"):
            continue
        header = _HEADER.match(line)
        if header:
            table = _resolve(_parts(header.group(2)), counts, array=header.group(1) == "[[")
            if isinstance(table[-1], int):
                yield table[:-1], number  # the array itself stands where its first table does
            yield table, number
            continue
        key = _KEY.match(line)
        if key:
            yield (*table, *_parts(key.group(1))), number
        for quote in ('"""', "'''"):
            if line.count(quote) % 2:
                closing = quote


def _resolve(parts: Path, counts: dict[Path, int], *, array: bool) -> Path:
    """Insert array positions: ``[models.image]`` belongs to the last ``[[models]]``."""
    place: Path = ()
    for index, part in enumerate(parts):
        place = (*place, part)
        last = index == len(parts) - 1
        if last and array:
            counts[place] = counts.get(place, -1) + 1
        if place in counts:
            place = (*place, counts[place])
    return place


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
