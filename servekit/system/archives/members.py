"""The files that go into an archive, by their place in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from servekit.errors import ModelError, raise_together
from servekit.system.archives.zipstream import Piece, Pieces

Source = Path | bytes | Pieces
"""A file on disk, bytes that were rendered, or ranges of files and bytes between them."""

RESERVED = "MAR-INF"
_LEFT_OUT = ("__pycache__", ".git", ".DS_Store")


@dataclass
class Members:
    """Collects (place in the archive -> source) and every problem on the way.

    Also the sizes of all of them, in bytes.
    """

    files: dict[str, Source] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, place: str, source: Source, what: str) -> str:
        """Put ``source`` at ``place``; two sources for one place are a problem, not an overwrite."""
        if place in self.files:
            self.problems.append(
                f"{what}: {place} is in the archive already (from {_shown(self.files[place])}), and would come from "
                f"{_shown(source)} again; rename one."
            )
        elif place.partition("/")[0] == RESERVED and not isinstance(source, bytes):
            self.problems.append(f"{what}: {source} would land in {RESERVED}/, which is TorchServe's; rename it.")
        elif not _is_utf8(place) or "\\" in place:
            self.problems.append(f"{what}: the name {place!r} cannot stand in an archive; rename it.")
        elif isinstance(source, Path) and not source.is_file():
            self.problems.append(f"{what}: {source} {_why_not(source)}.")
        else:
            self.files[place] = source
        return place

    def add_tree(self, folder: Path, prefix: str, what: str) -> None:
        """A folder with its tree, sorted; caches and version control stay outside."""
        for path in sorted(_walk(folder, ())):
            self.add(f"{prefix}/{path.relative_to(folder).as_posix()}", path, what)

    def size(self) -> int:
        """Bytes of all members together."""
        return sum(_size(source) for source in self.files.values())

    def check(self) -> None:
        """Raise one ModelError with every problem, those among the members included."""
        for place in self.files:
            for folder in map(str, PurePosixPath(place).parents):
                if folder in self.files:
                    self.problems.append(
                        f"{folder} would be both a file (from {_shown(self.files[folder])}) and the folder of "
                        f"{place} (from {_shown(self.files[place])}); rename one."
                    )
        raise_together(ModelError, self.problems, hint="Paths are relative to the current folder.")


def _size(source: Source) -> int:
    if isinstance(source, Path):
        return source.stat().st_size
    if isinstance(source, bytes):
        return len(source)
    return sum(piece.size if isinstance(piece, Piece) else len(piece) for piece in source)


def _shown(source: Source) -> str:
    if isinstance(source, tuple):
        return next((str(piece.path) for piece in source if isinstance(piece, Piece)), "servekit itself")
    return str(source) if isinstance(source, Path) else "servekit itself"


def _walk(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Everything below that is no folder; links are followed, also to folders, but not in a circle."""
    above = (*above, folder.resolve())
    for path in folder.iterdir():
        if path.name in _LEFT_OUT:
            continue
        if not path.is_dir():
            yield path
        elif path.resolve() not in above:
            yield from _walk(path, above)


def _why_not(source: Path) -> str:
    if source.exists():
        return "is not a file"
    return "is a link to nothing" if source.is_symlink() else "does not exist"


def _is_utf8(place: str) -> bool:
    try:
        place.encode()
    except UnicodeEncodeError:
        return False
    return True
