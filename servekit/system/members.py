"""The files that go into an archive, by their place in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from servekit.errors import ModelError, raise_together

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
                f"{what}: {place} is in the archive already (from {_shown(self.files[place])}); rename one."
            )
        elif isinstance(source, Path) and not source.is_file():
            self.problems.append(f"{what}: {source} {'is not a file' if source.exists() else 'does not exist'}.")
        else:
            self.files[place] = source
        return place

    def add_tree(self, folder: Path, prefix: str, what: str) -> None:
        """A folder with its tree, sorted; caches and version control stay outside."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not set(path.relative_to(folder).parts) & set(_LEFT_OUT):
                self.add(f"{prefix}/{path.relative_to(folder).as_posix()}", path, what)

    def check(self) -> None:
        raise_together(ModelError, self.problems, hint="Paths are relative to the current folder.")


def _shown(source: Path | bytes) -> str:
    return str(source) if isinstance(source, Path) else "servekit itself"
