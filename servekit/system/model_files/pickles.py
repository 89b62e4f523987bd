"""Find every pickle in a file of weights, at any depth, and refuse the names that none of them may mention."""

from __future__ import annotations

import re
import struct
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from servekit.errors import ModelError, raise_together
from servekit.system.model_files import pickles_of_tar, zip_members
from servekit.system.model_files.pickle_in_file import follow_in_file
from servekit.system.model_files.pickle_machine import Result
from servekit.system.model_files.pickle_values import shown

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
"""The first of the five pickles of a torch.save before 1.6."""

PICKLE_NAMES = (".pkl", ".pickle")
_TORCH_NAMES = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".th", ".model", ".joblib")
_MAX_DEPTH = 4
_MAX_ALL = 1 << 40  # bytes looked through, nested ones counted at each depth
_MAX_UNPACKED = 4 << 30  # bytes of a compressed archive inside another
_NPY = b"\x93NUMPY"
_NPY_HEADER = 1 << 20
_NPY_OBJECT = re.compile(rb"['\"][|<>=]?O\d*['\"]")
_SHOWN = 20

HINT = (
    "Load it where you trust it, and save the tensors alone: "
    "torch.save(model.state_dict(), 'weights.pt'). Never load a file of strangers to find out."
)


@dataclass
class _Scan:
    """What was found so far, over all nested files."""

    problems: list[str] = field(default_factory=list)
    pickles: int = 0
    archives: int = 0
    looked: int = 0


def scan(path: Path) -> tuple[str, ...]:
    """Check every pickle in ``path``; notes of what was looked through. Nothing is executed, torch not needed.

    ModelError with every name outside the list (pickle_globals.ALLOWED), in which member and at which byte, and
    for pickles that cannot be followed to their end.
    """
    found = _Scan()
    try:
        with path.open("rb") as file:
            _look(file, path.name, path.stat().st_size, 0, found)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    raise_together(ModelError, found.problems, hint=HINT)
    if not found.pickles:
        return (f"{path.name} holds no pickle.",)
    inside = f" in {found.archives} archives" if found.archives > 1 else ""
    pickles = "1 pickle" if found.pickles == 1 else f"{found.pickles} pickles"
    return (f"{pickles}{inside} of {path.name} looked through: no name outside the list of torch.",)


def refusals(result: Result, where: str) -> list[str]:
    """Sentences for what a pickle may not mention; and for where it cannot be followed, if nothing else."""
    told = [
        f"{where}: '{shown(item.name)}' (byte {item.offset}) is not on the list of what weights may hold."
        for item in result.refused[:_SHOWN]
    ]
    if len(result.refused) > _SHOWN:
        told.append(f"{where}: {len(result.refused) - _SHOWN} more names that are not on the list.")
    if result.error is not None:
        told.append(f"{where}: the pickle cannot be followed: {result.error.message} (byte {result.error.offset}).")
    return told


def _look(file: BinaryIO, where: str, size: int, depth: int, found: _Scan, script: bool = False) -> None:
    """One file or member, whatever it is. ``script``: it lies in a TorchScript archive."""
    found.looked += size
    if found.looked > _MAX_ALL:
        raise ModelError(f"{where}: what is nested in it is larger than can be looked through.")
    file.seek(0)
    head = file.read(tarfile.BLOCKSIZE)
    named = where.lower().endswith(PICKLE_NAMES)
    if head[:4] == zip_members.MAGIC or is_tar(head):
        if depth >= _MAX_DEPTH:
            raise ModelError(f"{where}: archives are nested more than {_MAX_DEPTH} deep.")
        found.archives += 1
        look = _look_into_zip if head[:4] == zip_members.MAGIC else _look_into_tar
        look(file, where, depth, found)
    elif head.startswith(_NPY):
        _look_at_npy(file, where, found)
    elif named or looks_like_pickle(head):
        _look_at_pickle(file, where, size, found, named=named or depth == 0, script=script)
    elif depth == 0 and where.lower().endswith(_TORCH_NAMES) and not is_safetensors(head, size):
        # Protocols 0 and 1 have no header: torch.load would take any such file for a pickle.
        _look_at_pickle(file, where, size, found, named=True, script=False)


def looks_like_pickle(head: bytes) -> bool:
    """Whether bytes begin with the header of protocols 2 to 5."""
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


def is_safetensors(head: bytes, size: int) -> bool:
    """Whether a file of ``size`` bytes that begins with ``head`` has the header of safetensors."""
    return len(head) > 8 and 2 <= int.from_bytes(head[:8], "little") <= size - 8 and head[8:9] == b"{"


def is_tar(head: bytes) -> bool:
    """Whether bytes begin with a tar header whose checksum is right."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _look_at_pickle(file: BinaryIO, where: str, size: int, found: _Scan, *, named: bool, script: bool) -> None:
    """``named``: it must be a pickle, by its name. Otherwise it may be numbers that happen to begin like one."""
    result = follow_in_file(file, 0, script=script)
    if result.error is not None and not named and not result.refused:
        return
    found.pickles += 1
    told = refusals(result, where)
    if not told and result.value == MAGIC_NUMBER and type(result.value) is int:
        told = _rest_of_legacy(file, result.end, where, found)
    elif not told and named and result.end != size:
        told = [f"{where}: {size - result.end} bytes follow the end of the pickle (byte {result.end})."]
    found.problems += told


def _rest_of_legacy(file: BinaryIO, position: int, where: str, found: _Scan) -> list[str]:
    """The four pickles after the magic number: version, system, the object, the keys of its storages."""
    for _ in range(4):
        result = follow_in_file(file, position)
        found.pickles += 1
        if told := refusals(result, where):
            return told
        position = result.end
    return []


def _look_into_zip(file: BinaryIO, where: str, depth: int, found: _Scan) -> None:
    with zip_members.opened(file, where) as archive:
        names = [info.filename for info in archive.infolist()]
        script = is_torchscript(names)
        for info in archive.infolist():
            if not info.file_size:
                continue
            place = f"{where}/{info.filename}"
            try:
                with archive.open(info) as member:
                    head = member.read(tarfile.BLOCKSIZE)
                    interesting = _is_interesting(head, info.filename)
                    if not interesting:
                        continue
                    if info.compress_type != zipfile.ZIP_STORED and info.file_size > _MAX_UNPACKED:
                        raise ModelError(f"{place} is compressed and {info.file_size} bytes: too large to look into.")
                    _look(cast(BinaryIO, member), place, info.file_size, depth + 1, found, script)
            except zip_members.DAMAGE as error:
                raise ModelError(f"{place} cannot be read: {error}.", hint="Copy or save it again.") from error


def is_torchscript(names: list[str]) -> bool:
    """Whether the members of a zip are those that torch.jit.save writes."""
    tails = {name.partition("/")[2] for name in names}
    return "constants.pkl" in tails and any(tail.startswith("code/") for tail in tails)


def _is_interesting(head: bytes, name: str) -> bool:
    starts = head.startswith((zip_members.MAGIC, _NPY)) or looks_like_pickle(head) or is_tar(head)
    return starts or name.lower().endswith(PICKLE_NAMES)


def _look_into_tar(file: BinaryIO, where: str, depth: int, found: _Scan) -> None:
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            members = [member for member in archive if member.isfile()]
            legacy = {member.name for member in members} >= pickles_of_tar.MEMBERS
            for member in members:
                inner, place = archive.extractfile(member), f"{where}/{member.name}"
                if inner is None:
                    continue
                if legacy and member.name in pickles_of_tar.MEMBERS:
                    results = pickles_of_tar.follow_member(cast(BinaryIO, inner), member.name)
                    found.pickles += len(results)
                    found.problems += [told for result in results for told in refusals(result, place)]
                elif _is_interesting(inner.read(tarfile.BLOCKSIZE), member.name):
                    _look(cast(BinaryIO, inner), place, member.size, depth + 1, found)
    except (tarfile.TarError, ValueError, EOFError, OverflowError, struct.error) as error:
        raise ModelError(f"{where} is a damaged tar ({error}).", hint="Copy or save it again.") from error


def _look_at_npy(file: BinaryIO, where: str, found: _Scan) -> None:
    """numpy loads an array of objects by unpickling it; its header says whether it is one."""
    file.seek(len(_NPY))
    version = file.read(2)
    size = int.from_bytes(file.read(2 if version[:1] == b"\x01" else 4), "little")
    if _NPY_OBJECT.search(file.read(min(size, _NPY_HEADER))):
        found.problems.append(f"{where} is a numpy array of objects, which numpy loads as a pickle.")
