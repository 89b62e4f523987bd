"""The files that go into an archive, by their place in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from servekit.errors import ModelError, raise_together

RESERVED = "MAR-INF"
_LEFT_OUT = ("__pycache__", ".git", ".DS_Store")


@dataclass
class Members:
    """Collects (place in the archive -> source) and every problem on the way.

    A source is a file on disk, or bytes that were rendered.
    """

    files: dict[str, Path | bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, place: str, source: Path | bytes, what: str) -> str:
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
        return self.rendered_size() + sum(s.stat().st_size for s in self.files.values() if isinstance(s, Path))

    def rendered_size(self) -> int:
        """Bytes of those that were rendered."""
        return sum(len(source) for source in self.files.values() if isinstance(source, bytes))

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


def _shown(source: Path | bytes) -> str:
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
