"""Element types and storage classes by the names that torch writes into a file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

STORAGES: Mapping[str, str] = MappingProxyType(
    {
        "DoubleStorage": "float64",
        "FloatStorage": "float32",
        "HalfStorage": "float16",
        "BFloat16Storage": "bfloat16",
        "LongStorage": "int64",
        "IntStorage": "int32",
        "ShortStorage": "int16",
        "CharStorage": "int8",
        "ByteStorage": "uint8",
        "BoolStorage": "bool",
        "ComplexDoubleStorage": "complex128",
        "ComplexFloatStorage": "complex64",
        "QInt8Storage": "qint8",
        "QUInt8Storage": "quint8",
        "QInt32Storage": "qint32",
        "QUInt4x2Storage": "quint4x2",
        "QUInt2x4Storage": "quint2x4",
    }
)
"""The class of a storage, without its module -> the type of its elements."""

ITEM_SIZES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
        **dict.fromkeys(("float32", "int32", "uint32", "qint32", "complex32"), 4),
        **dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "bits16"), 2),
        **dict.fromkeys(("int8", "uint8", "bool", "qint8", "quint8", "quint4x2", "quint2x4"), 1),
        **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
        **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2", "bits8", "bits1x8", "bits2x4", "bits4x2"), 1),
        **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)},
        "complex128": 16,
    }
)
"""Bytes of one element, for every type whose name may stand in a checkpoint."""

SCALAR_TYPES: Mapping[int, str] = MappingProxyType(
    {
        1: "uint8",
        2: "int8",
        3: "int16",
        4: "int32",
        5: "int64",
        6: "float16",
        7: "float32",
        8: "float64",
        9: "complex32",
        10: "complex64",
        11: "complex128",
        12: "bool",
        13: "bfloat16",
        28: "uint16",
        29: "float8_e4m3fn",
        30: "float8_e5m2",
        31: "float8_e4m3fnuz",
        32: "float8_e5m2fnuz",
        33: "float8_e8m0fnu",
        34: "uint32",
        35: "uint64",
    }
)
"""The numbers of torch.export's schema (ScalarType)."""
