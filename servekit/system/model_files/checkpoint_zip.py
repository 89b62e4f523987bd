"""What torch.save has written since 1.6: a stored zip of one pickle and a member for each storage."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import BinaryIO

from servekit.errors import ModelError
from servekit.system.archives.zipstream import Piece, stamp
from servekit.system.model_files import zip_members
from servekit.system.model_files.pickle_machine import MAX_BYTES, Result, follow
from servekit.system.model_files.pickles import is_torchscript
from servekit.system.model_files.stored_tensor import Loaded

_SHORT = 64


def load(path: Path) -> tuple[Result, Loaded]:
    """The pickle's result, to be judged by the caller, and the storages. ModelError for a damaged file."""
    before = stamp(path)
    with path.open("rb") as file, zip_members.opened(file, str(path)) as archive:
        root = _root(archive, path)
        result = pickle_of(archive, root, path)
        obstacle = _byte_order(archive, root, path)
        storages = {}
        for info in archive.infolist():
            key = info.filename.removeprefix(f"{root}/data/")
            if key == info.filename or key not in result.storages:
                continue
            if info.compress_type != zipfile.ZIP_STORED:
                obstacle = obstacle or f"{info.filename} is compressed"
                continue
            storages[key] = _piece(file, info, path, before)
    return result, Loaded(result.value, storages, result.storages, obstacle)


def pickle_of(archive: zipfile.ZipFile, root: str, path: Path) -> Result:
    """``data.pkl`` of a file of torch.save or torch.jit.save, followed."""
    where = f"{path}/{root}/data.pkl"
    data = zip_members.content(archive, archive.getinfo(f"{root}/data.pkl"), MAX_BYTES, where)
    return follow(data, script=is_torchscript(archive.namelist()))


def _root(archive: zipfile.ZipFile, path: Path) -> str:
    """The one folder that everything lies in: torch takes that of the first member, whatever the others say."""
    names = archive.namelist()
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1:
        raise ModelError(f"{path} is a zip of several folders, and not one of torch.save.")
    root = roots.pop()
    if f"{root}/data.pkl" not in names:
        raise ModelError(f"{path} is a zip, but not one of torch.save (no data.pkl inside).")
    return root


def _byte_order(archive: zipfile.ZipFile, root: str, path: Path) -> str | None:
    name = f"{root}/byteorder"
    if name not in archive.namelist():
        return None  # before torch 2.1, which wrote little-endian wherever it ran on such a machine
    order = zip_members.content(archive, archive.getinfo(name), _SHORT, f"{path}/{name}")
    return None if order == b"little" else f"its numbers are {order.decode('ascii', 'replace')}-endian"


def _piece(file: BinaryIO, info: zipfile.ZipInfo, path: Path, before: tuple[int, int]) -> Piece:
    offset = zip_members.data_offset(file, info, str(path))
    if info.compress_size != info.file_size or offset + info.file_size > before[0]:
        raise ModelError(
            f"{path} is truncated or damaged: {info.filename} would reach beyond its end.",
            hint="Copy or save it again; the disk may have been full.",
        )
    return Piece(path, offset, info.file_size, before)
