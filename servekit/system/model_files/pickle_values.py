"""What a pickle turns into here: inert descriptions. Nothing of them can be called, and none imports anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_DIMENSIONS = 64
_MAX_NUMBER = 1 << 62
_MAX_KEY = 8
_MAX_SHOWN = 160


class Malformed(Exception):  # noqa: N818 - what the bytes are, not what we failed at
    """These bytes are no pickle that can be followed. ``offset`` counts from the start of the pickle."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


class Truncated(Malformed):
    """The bytes end before the pickle does."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """A name of some module, never looked up. ``kind`` "" is one that is refused."""

    name: str
    kind: str


@dataclass(eq=False)
class Built:
    """An object of a class that we do not know: refused, or of TorchScript. ``state`` as BUILD gave it."""

    of: str
    state: Any = None


@dataclass(frozen=True, eq=False)
class Opaque:
    """A harmless value that nobody here needs: a set, a device, a layout."""

    what: str


class Ordered(dict[Any, Any]):
    """An OrderedDict. Its attributes (`_metadata` of a state dict) are dropped."""


@dataclass(frozen=True, eq=False)
class Storage:
    """A persistent id. ``dtype`` is torch's name, None for untyped bytes; ``size`` and ``offset`` in elements."""

    dtype: str | None
    key: str
    location: str
    size: int
    offset: int = 0


@dataclass(eq=False)
class Tensor:
    """A view of a storage: offset and strides in elements. ``odd`` says what keeps it from being a plain one."""

    storage: Storage | None
    dtype: str | None
    offset: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    odd: str = ""


def number(value: object, offset: int) -> int:
    """A count or a place: an int from 0 to 2^62. Malformed otherwise; ``offset`` is where to say it was found."""
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise Malformed("a size, stride or offset is no sensible number", offset)
    return value


def numbers(value: object, offset: int) -> tuple[int, ...]:
    """Shape or strides. Malformed for anything but a short tuple of numbers."""
    if not isinstance(value, tuple) or len(value) > MAX_DIMENSIONS:
        raise Malformed("a shape is no tuple of numbers", offset)
    return tuple(number(item, offset) for item in value)


def key(value: object, offset: int) -> Any:
    """``value``, once it may be a dict's key. Malformed for what is slow or endless to hash.

    A tuple that holds itself twice, a hundred levels deep, hashes for longer than the sun burns; great integers
    can be chosen to collide.
    """
    if type(value) is tuple and len(value) <= _MAX_KEY and not any(type(item) is tuple for item in value):
        return tuple(key(item, offset) for item in value)
    if type(value) is int and abs(value) >= 1 << 60:
        raise Malformed("a dict has an integer too great for a key", offset)
    if value is None or isinstance(value, (str, bytes, int, float, Symbol, Opaque, Storage, Tensor, Built)):
        return value
    raise Malformed("a dict has a key that is no plain value", offset)


def shown(name: str) -> str:
    """A name out of a file, for a message: nothing in it moves the cursor, and it ends some day."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
