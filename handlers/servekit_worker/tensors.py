"""JSON lists and .npy bytes to tensors, with nothing guessed: what does not fit is the client's 4xx."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from servekit_worker.errors import ItemError

NPY = "application/x-npy"
_MAGIC = b"\x93NUMPY"


def decode(body: Any, dtype: str, shape: tuple[int, ...] | None) -> torch.Tensor:
    """One item, without batch axis, as a tensor of ``dtype``.

    ``body`` is a JSON list of numbers (parsed, or as text or bytes) or the bytes of a .npy file. Raises
    ItemError 400 or 415. NaN and infinity are refused in JSON, which has no word for them, and kept in .npy.
    """
    binary = isinstance(body, (bytes, bytearray)) and body.startswith(_MAGIC)
    array = _from_npy(bytes(body)) if binary else _from_json(body)
    if shape is not None and array.shape != shape:
        raise ItemError(400, f"the input has shape {list(array.shape)}; this model takes {list(shape)}.")
    cast = _cast(array, np.dtype(dtype))
    if not binary and not np.isfinite(cast).all():
        raise ItemError(400, f"the input holds NaN, infinity or a number too large for {dtype}.")
    return torch.from_numpy(cast)


def to_npy(value: Any) -> bytes:
    """The bytes of a .npy file; ItemError 406 when the answer is not one tensor."""
    if not isinstance(value, torch.Tensor):
        raise ItemError(406, f"this model's answer is not one tensor: ask for JSON instead of {NPY}.")
    buffer = io.BytesIO()
    np.save(buffer, value.numpy(), allow_pickle=False)
    return buffer.getvalue()


def _from_json(body: Any) -> np.ndarray:
    if isinstance(body, (bytes, bytearray, str)):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ItemError(415, "the body is neither JSON nor a .npy file.") from error
    if not isinstance(body, (list, int, float)):
        raise ItemError(400, f"expected a JSON list of numbers (one item), got {type(body).__name__}.")
    try:
        array = np.asarray(body)
    except (ValueError, OverflowError) as error:
        raise ItemError(400, "the JSON lists are ragged: rows of one axis must be equally long.") from error
    return _numbers(array)


def _from_npy(body: bytes) -> np.ndarray:
    """Read the header and check it against the body, so that a lie about the size allocates nothing."""
    stream = io.BytesIO(body)
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read(stream)
    except (ValueError, KeyError) as error:
        raise ItemError(400, f"the .npy header cannot be read: {error}.") from error
    if dtype.hasobject:
        raise ItemError(400, "the .npy file holds Python objects, which are never unpickled here.")
    content = body[stream.tell() :]
    expected = math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise ItemError(400, f"the .npy header announces {expected} bytes, but {len(content)} follow.")
    array = np.frombuffer(content, dtype=dtype) if expected else np.empty(0, dtype=dtype)
    return _numbers(array.reshape(shape, order="F" if fortran else "C"))


def _numbers(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise ItemError(400, "the input holds something that is not a number (text, null, an object).")
    if array.size == 0:
        raise ItemError(400, f"the input is empty: its shape is {list(array.shape)}.")
    return array


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast to ``dtype``: floats may be rounded, whole numbers must fit exactly."""
    if dtype.kind in "iub" and array.dtype.kind != dtype.kind:
        limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        _check_whole(array, dtype, limits)
    elif dtype.kind in "iu":
        _check_whole(array, dtype, (np.iinfo(dtype).min, np.iinfo(dtype).max))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(array, dtype=dtype, order="C")


def _check_whole(array: np.ndarray, dtype: np.dtype, limits: tuple[int, int]) -> None:
    lowest, highest = array.min(), array.max()
    whole = array.dtype.kind != "f" or bool((array == np.trunc(array)).all())
    if not whole or int(lowest) < limits[0] or int(highest) > limits[1]:
        raise ItemError(400, f"the input does not fit {dtype.name}: whole numbers from {limits[0]} to {limits[1]} do.")
