"""An archive's files laid out as a folder, without copying what lies on the disk already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from servekit.errors import ModelError
from servekit.system.archives.members import Source
from servekit.system.archives.zipstream import Piece

_CHUNK = 8 * 1024 * 1024


def lay_out(files: Mapping[str, Source], folder: Path) -> None:
    """Files on disk become links; bytes and pieces are written."""
    for place, source in files.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, Path):
            target.symlink_to(source.resolve())
        elif isinstance(source, bytes):
            target.write_bytes(source)
        else:
            with target.open("wb") as out:
                for piece in source:
                    if isinstance(piece, bytes):
                        out.write(piece)
                    else:
                        _copy(piece, out)


def links(unpacked: Path, folder: Path) -> None:
    """The same for an archive that is unpacked already."""
    files = {p.relative_to(unpacked).as_posix(): p for p in sorted(unpacked.rglob("*")) if p.is_file()}
    lay_out({place: path for place, path in files.items() if not place.startswith(".servekit-")}, folder)


def _copy(piece: Piece, out: BinaryIO) -> None:
    with piece.path.open("rb", buffering=0) as source:
        source.seek(piece.offset)
        left = piece.size
        while left:
            data = source.read(min(_CHUNK, left))
            if not data:
                raise ModelError(f"{piece.path} became shorter while it was read.")
            out.write(data)
            left -= len(data)
