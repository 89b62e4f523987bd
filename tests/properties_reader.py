"""java.util.Properties.load in Python, written from its documentation: the other side of our escaping."""

from __future__ import annotations

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read(text: str) -> dict[str, str]:
    """Key -> value of a .properties text, as Java 9 and later read it."""
    pairs = {}
    for line in _logical_lines(text):
        end = _key_end(line)
        rest = line[end:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        pairs[_decode(line[:end])] = _decode(rest)
    return pairs


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    open_line: str | None = None
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stripped = natural.lstrip(" \t\f")
        if open_line is None and (not stripped or stripped[0] in "#!"):
            continue
        line = (open_line or "") + stripped
        trailing = len(line) - len(line.rstrip("\\"))
        open_line = line[:-1] if trailing % 2 else None
        if open_line is None:
            lines.append(line)
    return lines if open_line is None else [*lines, open_line]


def _key_end(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _decode(text: str) -> str:
    units: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "\\" and position < len(text):
            char = text[position]
            position += 1
            if char == "u":
                char = chr(int(text[position : position + 4], 16))
                position += 4
            else:
                char = _ESCAPES.get(char, char)
        units.append(char)
    # Java strings are UTF-16: two escaped surrogates are one character.
    return "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
