"""State dicts as names: element types, known prefixes, and whether a file's names fit a model's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

SAFETENSORS_CODES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint64": "U64",
        "uint32": "U32",
        "uint16": "U16",
        "uint8": "U8",
        "bool": "BOOL",
        "complex64": "C64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e4m3fnuz": "F8_E4M3FNUZ",
        "float8_e5m2": "F8_E5M2",
        "float8_e5m2fnuz": "F8_E5M2FNUZ",
    }
)
"""torch's name of an element type -> the code of safetensors; what torch can load back and nothing else."""

_BYTES_8 = ("F64", "I64", "U64", "C64")
_BYTES_4 = ("F32", "I32", "U32")
_BYTES_2 = ("F16", "BF16", "I16", "U16")

PREFIXES = ("module._orig_mod.", "_orig_mod.module.", "module.", "_orig_mod.", "model.")
"""What wrappers put before every name: DataParallel, torch.compile, LightningModule. Longest first."""

_SHOWN = 5


@dataclass(frozen=True)
class Fit:
    """How a file's names become a model's.

    ``rename`` (file's name -> model's) holds only what changes; ``note`` says so. With ``problem`` the two do
    not belong together, and the other fields are empty.
    """

    rename: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    problem: str | None = None


def item_size(code: str) -> int:
    """Bytes of one element of a safetensors code."""
    if code in _BYTES_8:
        return 8
    if code in _BYTES_4:
        return 4
    return 2 if code in _BYTES_2 else 1


def prefix(keys: Collection[str]) -> str | None:
    """The known prefix that every key carries, with more than nothing behind it; None without one."""
    for known in PREFIXES:
        if keys and all(key.startswith(known) and len(key) > len(known) for key in keys):
            return known
    return None


def fit(file_keys: Collection[str], model_keys: Collection[str]) -> Fit:
    """Match names: as they are, or with a known prefix of the file's taken off.

    A name that only the model's wrapper carries is never added: the class of the user decides its own names.
    """
    wanted = set(model_keys)
    if set(file_keys) == wanted:
        return Fit()
    for known in PREFIXES:
        if not all(key.startswith(known) for key in file_keys):
            continue
        rename = {key: key[len(known) :] for key in file_keys}
        if set(rename.values()) == wanted:
            return Fit(rename, f"The prefix {known!r} was taken off all {len(rename)} names.")
    return Fit(problem=_mismatch(file_keys, model_keys))


def _mismatch(file_keys: Collection[str], model_keys: Collection[str]) -> str:
    """In the words of torch's load_state_dict, so that a search finds its explanations."""
    has, wanted = set(file_keys), set(model_keys)
    parts = []
    if missing := [key for key in model_keys if key not in has]:
        parts.append(f"Missing key(s) in state_dict: {_listed(missing)}.")
    if unexpected := [key for key in file_keys if key not in wanted]:
        parts.append(f"Unexpected key(s) in state_dict: {_listed(unexpected)}.")
    return " ".join(parts)


def _listed(keys: list[str]) -> str:
    shown = ", ".join(f'"{key}"' for key in keys[:_SHOWN])
    more = len(keys) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
