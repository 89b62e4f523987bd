"""``init``: the commented servekit.toml and a .gitignore for what servekit makes."""

from __future__ import annotations

from pathlib import Path

from servekit import assets
from servekit.domain.project import FILE
from servekit.errors import ConflictError, StorageError

IGNORED = ("model_store/", ".servekit/")


def template() -> str:
    return (assets.config() / "servekit.example.toml").read_text(encoding="utf-8")


def init(folder: Path) -> tuple[Path, ...]:
    """Write what is missing; returns what was written. An existing servekit.toml is never touched."""
    path = folder / FILE
    if path.exists():
        raise ConflictError(f"{path} exists already.", hint="See all keys with: servekit init --print")
    try:
        path.write_text(template(), encoding="utf-8")
        return (path, *_ignore(folder / ".gitignore"))
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}.") from error


def _ignore(path: Path) -> tuple[Path, ...]:
    present = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [line for line in IGNORED if line not in present.split()]
    if not missing:
        return ()
    with path.open("a", encoding="utf-8") as file:
        file.write(("" if not present or present.endswith("\n") else "\n") + "\n".join(missing) + "\n")
    return (path,)
