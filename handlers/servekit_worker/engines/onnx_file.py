"""Which floating type an ONNX file's weights have, read from the protobuf without the onnx package."""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from servekit_worker.errors import SetupError

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.dims and data_type.
_GRAPH, _INITIALIZER, _DIMS, _DATA_TYPE = 7, 5, 1, 2
_FLOATS = {1: "fp32", 10: "fp16", 16: "bf16"}  # TensorProto.DataType


def precision(path: Path) -> str:
    """fp32, fp16 or bf16: what most of the floating weights are; fp32 for a graph without any."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            counts = _elements(data)
        except (IndexError, ValueError) as error:
            raise SetupError(f"weights {path.name}: not an ONNX file: {error}.") from error
    return counts.most_common(1)[0][0] if counts else "fp32"


def _elements(data: mmap.mmap) -> Counter[str]:
    counts: Counter[str] = Counter()
    for field, first, last in _fields(data, 0, len(data)):
        if field == _GRAPH:
            for inner, begin, end in _fields(data, first, last):
                if inner == _INITIALIZER:
                    kind, size = _tensor(data, begin, end)
                    if kind in _FLOATS:
                        counts[_FLOATS[kind]] += size
    return counts


def _tensor(data: mmap.mmap, first: int, last: int) -> tuple[int, int]:
    """The data type and the number of elements of a TensorProto."""
    dims, kind = [], 0
    for field, begin, end in _fields(data, first, last):
        if field == _DATA_TYPE:
            kind = _number(data, begin)[0]
        elif field == _DIMS:  # one value, or several packed into one field
            while begin < end:
                value, begin = _number(data, begin)
                dims.append(value)
    return kind, math.prod(dims)


def _fields(data: mmap.mmap, at: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Field number, begin and end of every field between ``at`` and ``last``."""
    while at < last:
        tag, at = _number(data, at)
        wire = tag & 7
        if wire == 0:
            begin, at = at, _number(data, at)[1]
        elif wire == 2:
            length, begin = _number(data, at)
            at = begin + length
        elif wire in (1, 5):
            begin, at = at, at + (8 if wire == 1 else 4)
        else:
            raise ValueError(f"a field of unknown kind {wire} at byte {at}")
        if at > last:
            raise ValueError(f"a field ends at byte {at}, after the end of what holds it ({last})")
        yield tag >> 3, begin, at


def _number(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(f"a number is too long at byte {at}")
