"""What torch.save wrote before 1.6 (and still does when asked): five pickles, then the storages one by one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from servekit.errors import ModelError, raise_together
from servekit.system.archives.zipstream import Piece, stamp
from servekit.system.model_files.pickle_in_file import follow_in_file
from servekit.system.model_files.pickle_machine import Result
from servekit.system.model_files.pickle_values import Storage
from servekit.system.model_files.pickles import HINT, MAGIC_NUMBER, refusals
from servekit.system.model_files.stored_tensor import Loaded
from servekit.system.model_files.torch_dtypes import ITEM_SIZES

_VERSION = 1001
_COUNT = 8  # bytes before each storage: how many elements it has


def begins(path: Path) -> bool:
    """Whether the first pickle of a file is the magic number."""
    with path.open("rb") as file:
        return _is_magic(follow_in_file(file, 0))


def load(path: Path) -> tuple[Result, Loaded]:
    """The pickle of the object, to be judged by the caller, and the storages.

    ModelError for a file that is none, or damaged. When the object's pickle has an error, nothing after it is
    read.
    """
    before = stamp(path)
    with path.open("rb") as file:
        header: list[Any] = []
        position = 0
        for _ in range(3):
            part = _followed(file, position, path)
            if not header and not _is_magic(part):
                raise ModelError(f"{path} is a pickle, but not one of torch.save.", hint=HINT)
            header.append(part.value)
            position = part.end
        _, version, system = header
        if version != _VERSION:
            raise _damaged(path, "its version is none that torch ever wrote")
        result = follow_in_file(file, position)
        if result.error is not None or result.refused:
            return result, Loaded(result.value, {}, result.storages)
        keys = _followed(file, result.end, path)
        places = _places(file, keys, result.storages, path, before)
    little = not isinstance(system, dict) or system.get("little_endian", True) is True
    obstacle = None if little else "its numbers are big-endian"
    return result, Loaded(result.value, places, result.storages, obstacle)


def _is_magic(result: Result) -> bool:
    return type(result.value) is int and result.value == MAGIC_NUMBER


def _followed(file: BinaryIO, position: int, path: Path) -> Result:
    result = follow_in_file(file, position)
    raise_together(ModelError, refusals(result, str(path)), hint=HINT)
    return result


def _places(
    file: BinaryIO, keys: Result, mentioned: Mapping[str, Storage], path: Path, before: tuple[int, int]
) -> dict[str, Piece]:
    """key -> its bytes. Each storage is a count and that many elements."""
    if not isinstance(keys.value, list):
        raise _damaged(path, "the list of its storages is none")
    places: dict[str, Piece] = {}
    position = keys.end
    for key in keys.value:
        storage = mentioned.get(key) if isinstance(key, str) else None
        if storage is None or key in places:
            raise _damaged(path, "a storage that no tensor belongs to, or one twice")
        file.seek(position)
        count = int.from_bytes(file.read(_COUNT), "little", signed=True)
        size = count * ITEM_SIZES[storage.dtype or "uint8"]
        position += _COUNT
        if count < 0 or position + size > before[0]:
            raise _damaged(path, f"storage {key!r} would reach beyond its end")
        places[key] = Piece(path, position, size, before)
        position += size
    if position != before[0]:
        raise _damaged(path, f"{before[0] - position} bytes follow the last storage")
    return places


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"{path} is truncated or damaged: {why}.", hint="Copy or save it again.")
