"""ONNX, by its protobuf fields: enough to recognise a model and to say what goes in and out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

from servekit.errors import ModelError
from servekit.system.model_files.protobuf import Field, fields, text, varints

# onnx.proto3: field numbers of ModelProto, GraphProto, ValueInfoProto and TensorProto never change.
_MODEL = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26))
_IR_VERSION, _PRODUCER, _PRODUCER_VERSION, _GRAPH, _OPSET = 1, 2, 3, 7, 8
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12
_MAX_IR_VERSION = 100
_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
}


def is_onnx(path: Path) -> bool:
    """Whether a file is one ModelProto: its version, a graph, and no field that it does not have. OSError."""
    size = path.stat().st_size
    versions = graphs = 0
    with path.open("rb") as file:
        try:
            for field in fields(file, 0, size):
                if field.number not in _MODEL:
                    return False
                versions += field.number == _IR_VERSION and field.wire == 0 and 1 <= field.value <= _MAX_IR_VERSION
                graphs += field.number == _GRAPH and field.wire == 2 and _is_graph(file, field)
        except ValueError:
            return False
    return versions == 1 and graphs == 1


def describe(path: Path) -> dict[str, Any]:
    """``producer``, ``opset`` (of ai.onnx; None when it names none), ``inputs`` and ``outputs`` (name, dtype,
    shape with numbers or names), ``parameters``, ``tensors`` and ``dtypes`` of its initializers.

    ModelError for a damaged file. Data in files beside it is counted, not read.
    """
    told: dict[str, Any] = {"producer": "", "opset": None, "inputs": [], "outputs": []}
    initializers: dict[str, tuple[str, int]] = {}
    try:
        with path.open("rb") as file:
            for field in fields(file, 0, path.stat().st_size):
                if field.number in (_PRODUCER, _PRODUCER_VERSION):
                    told["producer"] = f"{told['producer']} {text(file, field)}".strip()
                elif field.number == _OPSET:
                    domain, version = _opset(file, field)
                    told["opset"] = version if domain in ("", "ai.onnx") else told["opset"]
                elif field.number == _GRAPH:
                    for inner in fields(file, field.start, field.end):
                        if inner.number in (_INPUT, _OUTPUT):
                            told["inputs" if inner.number == _INPUT else "outputs"].append(_value(file, inner))
                        elif inner.number == _INITIALIZER:
                            name, dtype, count = _initializer(file, inner)
                            initializers[name] = dtype, count
    except ValueError as error:
        raise ModelError(f"{path} is a damaged ONNX model: {error}.", hint="Export or copy it again.") from error
    # Before IR version 4 every initializer was listed among the inputs too.
    told["inputs"] = [value for value in told["inputs"] if value["name"] not in initializers]
    dtypes: dict[str, int] = {}
    for dtype, _ in initializers.values():
        dtypes[dtype] = dtypes.get(dtype, 0) + 1
    parameters = sum(count for _, count in initializers.values())
    return {**told, "parameters": parameters, "tensors": len(initializers), "dtypes": dtypes}


def _is_graph(file: BinaryIO, graph: Field) -> bool:
    numbers = {field.number for field in fields(file, graph.start, graph.end)}
    return _OUTPUT in numbers and numbers <= set(range(1, 17))


def _opset(file: BinaryIO, field: Field) -> tuple[str, int]:
    domain, version = "", 0
    for inner in fields(file, field.start, field.end):
        if inner.number == 1:
            domain = text(file, inner)
        elif inner.number == 2:
            version = inner.value
    return domain, version


def _value(file: BinaryIO, field: Field) -> dict[str, Any]:
    """ValueInfoProto{name=1, type=2{tensor_type=1{elem_type=1, shape=2{dim=1{dim_value=1, dim_param=2}}}}}."""
    told: dict[str, Any] = {"name": "", "dtype": None, "shape": None}
    for inner in fields(file, field.start, field.end):
        if inner.number == 1:
            told["name"] = text(file, inner)
        elif inner.number == 2:
            for kind in fields(file, inner.start, inner.end):
                if kind.number == 1:
                    told["dtype"], told["shape"] = _tensor_type(file, kind)
    return told


def _tensor_type(file: BinaryIO, field: Field) -> tuple[str | None, list[int | str | None] | None]:
    dtype, shape = None, None
    for inner in fields(file, field.start, field.end):
        if inner.number == 1:
            dtype = _TYPES.get(inner.value, f"type {inner.value}")
        elif inner.number == 2:
            shape = [_dimension(file, part) for part in fields(file, inner.start, inner.end)]
    return dtype, shape


def _dimension(file: BinaryIO, field: Field) -> int | str | None:
    for inner in fields(file, field.start, field.end):
        if inner.number == 1:
            return inner.value
        if inner.number == 2:
            return text(file, inner)
    return None


def _initializer(file: BinaryIO, field: Field) -> tuple[str, str, int]:
    """TensorProto{dims=1, data_type=2, name=8}: (name, dtype, elements)."""
    name, dtype, dims = "", "", list[int]()
    for inner in fields(file, field.start, field.end):
        if inner.number == 1:
            dims += varints(file, inner)
        elif inner.number == 2:
            dtype = _TYPES.get(inner.value, f"type {inner.value}")
        elif inner.number == 8:
            name = text(file, inner)
    return name, dtype, math.prod(dims)
