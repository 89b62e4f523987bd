"""From what a user names to an archive on the disk: a name of the store, or a path in any of its forms."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from servekit.errors import ModelError
from servekit.system.archives import archive
from servekit.system.archives.archive import ArchiveInfo

STORE = "model_store"
SUFFIXES = (".mar", ".tar.gz", ".tgz")


def is_path(said: str) -> bool:
    """Whether ``said`` is a path, and not a name of the store."""
    return said.endswith(SUFFIXES) or os.sep in said or said.startswith(".")


def path_of(said: str, root: Path) -> Path:
    """Where the archive called ``said`` lies, or would lie."""
    return root / said if is_path(said) else root / STORE / f"{said}.mar"


def problem(path: Path) -> str | None:
    """Why there is no archive to open at ``path``. Path.is_file raises, or lies, about a closed folder."""
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {path}."
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    if stat.S_ISREG(kind) or (stat.S_ISDIR(kind) and (path / archive.MANIFEST).is_file()):
        return None
    return f"{path} is neither a file nor an archive's folder (no {archive.MANIFEST})."


def in_store(store: Path) -> list[str]:
    """Names of the .mar files in ``store``, sorted."""
    try:
        with os.scandir(store) as entries:
            return sorted(Path(entry.name).stem for entry in entries if entry.name.endswith(".mar"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelError(
            f"{store} cannot be read: {error.strerror}.", hint="Check who owns that folder, and its permissions."
        ) from error


def opened(said: str, root: Path, cache: Path | None) -> ArchiveInfo:
    """Find and check one archive. Raises ModelError."""
    path = path_of(said, root)
    if wrong := problem(path):
        there = ", ".join(in_store(root / STORE))
        raise ModelError(f"{said}: {wrong}", hint=f"In the store: {there or 'nothing'}. Make one: servekit package")
    return archive.open_archive(path, cache)
