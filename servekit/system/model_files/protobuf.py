"""The wire format of protocol buffers, as far as telling fields apart in a file goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10
_MAX_TEXT = 64 * 1024


@dataclass(frozen=True)
class Field:
    """``number`` of the field; ``value`` of a varint, or where its bytes lie: ``start`` to ``end``."""

    number: int
    wire: int
    value: int
    start: int
    end: int


def fields(file: BinaryIO, start: int, end: int) -> Iterator[Field]:
    """Fields of a message that lies between two offsets. ValueError when they do not fill it exactly."""
    position = start
    while position < end:
        file.seek(position)
        head = file.read(2 * _MAX_VARINT)
        tag, used = _varint(head, 0)
        wire, value = tag & 7, 0
        if wire == _VARINT:
            value, used = _varint(head, used)
            here = position = position + used
        elif wire in (_FIXED64, _FIXED32):
            here, position = position + used, position + used + (8 if wire == _FIXED64 else 4)
        elif wire == _BYTES:
            size, used = _varint(head, used)
            here, position = position + used, position + used + size
        else:
            raise ValueError(f"wire type {wire}")
        if position > end or tag >> 3 == 0:
            raise ValueError("a field reaches beyond its message")
        yield Field(tag >> 3, wire, value, here, position)


def text(file: BinaryIO, field: Field) -> str:
    """A string field. ValueError when it is none, or longer than a name can be."""
    if field.wire != _BYTES or field.end - field.start > _MAX_TEXT:
        raise ValueError("a field is no text")
    file.seek(field.start)
    return file.read(field.end - field.start).decode("utf-8")


def varints(file: BinaryIO, field: Field) -> list[int]:
    """A repeated integer: packed, or the one value of this field."""
    if field.wire != _BYTES:
        return [field.value]
    if field.end - field.start > _MAX_TEXT:
        raise ValueError("a field is no short list")
    file.seek(field.start)
    data = file.read(field.end - field.start)
    found, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        found.append(value)
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT):
        if position + index >= len(data):
            raise ValueError("a number is cut off")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a number without end")
