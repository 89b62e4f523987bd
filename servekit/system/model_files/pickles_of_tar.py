"""The pickles in a file of torch 0.1, a tar: many in a row, with raw numbers between them."""

from __future__ import annotations

import struct
from typing import BinaryIO

from servekit.system.model_files.pickle_in_file import follow_in_file
from servekit.system.model_files.pickle_machine import Result
from servekit.system.model_files.pickle_values import Symbol
from servekit.system.model_files.torch_dtypes import ITEM_SIZES, STORAGES

MEMBERS = frozenset(("storages", "tensors", "pickle"))


def follow_member(file: BinaryIO, name: str) -> list[Result]:
    """Every pickle of one of MEMBERS, up to the first that is refused. ValueError or EOFError when damaged.

    ``pickle`` is one, of the object. The others begin with a count; that many pickles follow, each with raw
    numbers behind it, and ``storages`` ends with the list of its views.
    """
    results = [follow_in_file(file, 0, numbered=True)]
    count = results[0].value
    if name == "pickle" or _is_bad(results[0]):
        return results
    if type(count) is not int or count < 0:
        raise ValueError(f"{name} does not begin with a count")
    position = results[0].end
    for _ in range(count):
        results.append(follow_in_file(file, position, numbered=True))
        if _is_bad(results[-1]):
            return results
        position = results[-1].end + _raw_size(file, results[-1], name)
    if name == "storages":
        results.append(follow_in_file(file, position, numbered=True))
    return results


def _is_bad(result: Result) -> bool:
    return bool(result.refused) or result.error is not None


def _raw_size(file: BinaryIO, result: Result, name: str) -> int:
    """Bytes of raw numbers after a pickle of torch 0.1."""
    file.seek(result.end)
    if name == "tensors":
        (dimensions,) = struct.unpack("<i4x", _exactly(file, 8))
        return 16 + 16 * int(dimensions)
    (count,) = struct.unpack("<q", _exactly(file, 8))
    of = result.value[2] if isinstance(result.value, tuple) and len(result.value) == 3 else None
    dtype = STORAGES.get(of.name.rpartition(".")[2]) if isinstance(of, Symbol) else None
    if dtype is None or count < 0:
        raise ValueError("a storage of no known type or size")
    return 8 + int(count) * ITEM_SIZES[dtype]


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError("it ends in the middle")
    return data
