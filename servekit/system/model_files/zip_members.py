"""Zip files that others wrote: opened strictly, so that every reader finds the same members in them."""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from servekit.errors import ModelError

MAGIC = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s22xHH")
_MAX_MEMBERS = 1_000_000
# What the reader of the standard library raises for damaged files, besides its own error.
DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, OverflowError, zlib.error)


@contextlib.contextmanager
def opened(file: BinaryIO, where: str) -> Iterator[zipfile.ZipFile]:
    """A zip that lies in ``file`` from its first byte on. ModelError (naming ``where``) for any other.

    Two members of one name, one without a name, or bytes before the first, are refused: torch's reader and
    Python's would each see a different file.
    """
    try:
        archive = zipfile.ZipFile(file)
    except (*DAMAGE, struct.error, OSError) as error:
        raise ModelError(
            f"{where} is truncated or damaged: it begins like a zip ({error}).",
            hint="Copy or save it again; the disk may have been full.",
        ) from error
    with archive:
        infos = archive.infolist()
        if len(infos) > _MAX_MEMBERS:
            raise ModelError(f"{where} has more than {_MAX_MEMBERS} members.")
        if infos and min(info.header_offset for info in infos) != 0:
            raise ModelError(
                f"{where} has bytes before its first member, which readers of zips take differently.",
                hint="Save it again with torch.save.",
            )
        if not all(info.filename for info in infos):
            raise ModelError(f"{where} is a damaged zip: it has a member without a name.", hint="Save it again.")
        # torch's reader does not tell upper from lower case.
        twice = [name for name, count in Counter(info.filename.lower() for info in infos).items() if count > 1]
        if twice:
            raise ModelError(
                f"{where} has two members named {twice[0]!r}: readers would see different ones.",
                hint="Save it again with torch.save.",
            )
        yield archive


def content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int, where: str) -> bytes:
    """A member's bytes, its CRC checked. ModelError when it is damaged or larger than ``most``."""
    if info.file_size > most:
        raise ModelError(f"{where} is {info.file_size} bytes, more than the {most} that are looked through.")
    try:
        with archive.open(info) as member:
            data = member.read(most + 1)
    except (*DAMAGE, OSError) as error:
        raise ModelError(f"{where} cannot be read: {error}.", hint="Copy or save it again.") from error
    if len(data) != info.file_size:
        raise ModelError(f"{where} holds {len(data)} bytes and not the {info.file_size} that its zip says.")
    return data


def data_offset(file: BinaryIO, info: zipfile.ZipInfo, where: str) -> int:
    """Where a stored member's bytes begin in ``file``. ModelError when its local header is another's."""
    file.seek(info.header_offset)
    head = file.read(_LOCAL.size)
    if len(head) != _LOCAL.size or head[:4] != MAGIC:
        raise ModelError(f"{where}: the header of {info.filename} is damaged.", hint="Copy or save it again.")
    _, name_size, extra_size = _LOCAL.unpack(head)
    return int(info.header_offset + _LOCAL.size + name_size + extra_size)
