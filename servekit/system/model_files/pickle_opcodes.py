"""The opcodes of pickle protocols 0 to 5, told apart and their arguments decoded; nothing is built.

Our own and not pickletools': that one resolves escapes in GLOBAL, which the real unpickler does not, and so
sees another name than the one that would be imported.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping
from typing import Any

from servekit.system.model_files.pickle_values import Malformed, Truncated

_MAX_LINE = 64 * 1024
_MAX_LONG = 1024  # bytes; an optimizer counts no steps beyond 2^8192


class Source:
    """Bytes and a position in them. ``whole``: the file ends where they do, so that a short one is damaged."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes. Truncated when there are fewer; nothing is allocated then."""
        start, end = self.position, self.position + count
        if end > len(self.data):
            raise Truncated("it ends in the middle", start)
        self.position = end
        return self.data[start:end]

    def line(self) -> bytes:
        """Up to the next newline, without it."""
        start = self.position
        end = self.data.find(b"\n", start, start + _MAX_LINE)
        if end < 0:
            if len(self.data) - start < _MAX_LINE:
                raise Truncated("it ends in the middle of a line", start)
            raise Malformed(f"a line is longer than {_MAX_LINE} bytes", start)
        self.position = end + 1
        return self.data[start:end]


def _unsigned(size: int) -> Callable[[Source], int]:
    return lambda source: int.from_bytes(source.take(size), "little")


def _counted(size: int) -> Callable[[Source], bytes]:
    return lambda source: source.take(int.from_bytes(source.take(size), "little"))


def _signed(source: Source) -> int:
    return int.from_bytes(source.take(4), "little", signed=True)


def _long(size: int) -> Callable[[Source], int]:
    def read(source: Source) -> int:
        count = int.from_bytes(source.take(size), "little")
        if count > _MAX_LONG:
            raise Malformed(f"an integer of {count} bytes", source.position)
        return int.from_bytes(source.take(count), "little", signed=True)

    return read


def _text(size: int) -> Callable[[Source], str]:
    read = _counted(size)
    return lambda source: read(source).decode("utf-8", "surrogatepass")


def _old_text(size: int) -> Callable[[Source], str]:
    """A str of Python 2: torch.load decodes it as UTF-8."""
    read = _counted(size)
    return lambda source: read(source).decode("utf-8", "surrogateescape")


def _int_line(source: Source) -> int | bool:
    line = source.line()
    return {b"00": False, b"01": True}[line] if line in (b"00", b"01") else _digits(line)


def _long_line(source: Source) -> int:
    return _digits(source.line().removesuffix(b"L"))


def _digits(line: bytes) -> int:
    if len(line) > _MAX_LONG:
        raise ValueError
    return int(line)


def _quoted(source: Source) -> str:
    line = source.line().strip()
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise ValueError
    # Not in the type stubs, but the one decoder of Python's own string escapes for bytes.
    return bytes(codecs.escape_decode(line[1:-1])[0]).decode("utf-8", "surrogateescape")


def _name(source: Source) -> tuple[str, str]:
    return source.line().decode("utf-8"), source.line().decode("utf-8")


def _double(source: Source) -> float:
    return float(struct.unpack(">d", source.take(8))[0])


ARGUMENTS: Mapping[int, Callable[[Source], Any]] = {
    ord(code): read
    for code, read in {
        "I": _int_line,
        "L": _long_line,
        "F": lambda source: float(source.line()),
        "S": _quoted,
        "V": lambda source: source.line().decode("raw-unicode-escape"),
        "P": lambda source: source.line().decode("ascii"),
        "g": lambda source: _digits(source.line()),
        "p": lambda source: _digits(source.line()),
        "c": _name,
        "i": _name,
        "J": _signed,
        "K": _unsigned(1),
        "M": _unsigned(2),
        "G": _double,
        "T": _old_text(4),
        "U": _old_text(1),
        "B": _counted(4),
        "C": _counted(1),
        "X": _text(4),
        "h": _unsigned(1),
        "j": _unsigned(4),
        "q": _unsigned(1),
        "r": _unsigned(4),
        "\x80": _unsigned(1),
        "\x82": _unsigned(1),
        "\x83": _unsigned(2),
        "\x84": _signed,
        "\x8a": _long(1),
        "\x8b": _long(4),
        "\x8c": _text(1),
        "\x8d": _text(8),
        "\x8e": _counted(8),
        "\x95": _unsigned(8),
        "\x96": _counted(8),
    }.items()
}
"""opcode -> how its argument is read. Those without an argument are in PLAIN."""

PLAIN = frozenset(b"(.012NQRbaeds)}]ltou\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98")
"""Opcodes without an argument."""


def read(source: Source) -> tuple[int, Any]:
    """The next opcode and its argument (None without one). Malformed or Truncated otherwise."""
    at = source.position
    opcode = source.take(1)[0]
    reader = ARGUMENTS.get(opcode)
    if reader is None:
        if opcode not in PLAIN:
            raise Malformed(f"there is no opcode {opcode:#04x}", at)
        return opcode, None
    try:
        return opcode, reader(source)
    except ValueError as error:  # digits, quotes and encodings
        raise Malformed(f"opcode {chr(opcode)!r} has an argument that cannot be read", at) from error
