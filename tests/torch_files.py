"""Files as torch.save writes them, made without torch: opcodes by hand, so that each can be bent."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

MAGIC = 0x1950A86A20F9469CFC6C

Spec = tuple[str, str, int, int, Sequence[int], Sequence[int]]
"""storage class, storage key, its elements, offset, shape, strides."""


def text(value: str) -> bytes:
    """BINUNICODE."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(integer, values)) + b"t"


def storage(kind: str, key: str, size: int, place: str = "cpu") -> bytes:
    """A persistent id and BINPERSID."""
    return b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text(place) + integer(size) + b"tQ"


def tensor(spec: Spec, place: str = "cpu") -> bytes:
    kind, key, size, offset, shape, strides = spec
    inside = storage(kind, key, size, place) + integer(offset) + numbers(shape) + numbers(strides)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + inside + b"\x89ccollections\nOrderedDict\n)RtR"


def mapping(items: Mapping[str, bytes]) -> bytes:
    """EMPTY_DICT and SETITEMS of opcodes by name."""
    return b"}(" + b"".join(text(name) + value for name, value in items.items()) + b"u"


def state(specs: Mapping[str, Spec], place: str = "cpu") -> bytes:
    """A whole pickle of protocol 2."""
    return b"\x80\x02" + mapping({name: tensor(spec, place) for name, spec in specs.items()}) + b"."


def save_zip(path: Path, data: bytes, storages: Mapping[str, bytes], more: Mapping[str, bytes] | None = None) -> Path:
    """As since torch 1.6."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for name, content in (more or {"byteorder": b"little", "version": b"3\n"}).items():
            archive.writestr(f"archive/{name}", content)
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)
    return path


def legacy(data: bytes, storages: Mapping[str, tuple[int, bytes]], *, little: bool = True, keys: bytes = b"") -> bytes:
    """As before torch 1.6: five pickles, then each storage's number of elements and the elements."""
    system = {"protocol_version": 1001, "little_endian": little, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = b"".join(pickle.dumps(part, 2) for part in (MAGIC, 1001, system))
    tail = b"".join(struct.pack("<q", count) + content for count, content in storages.values())
    return head + data + (keys or pickle.dumps(list(storages), 2)) + tail
