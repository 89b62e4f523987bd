"""The project folder: where servekit.toml is, and what it says."""

from __future__ import annotations

from pathlib import Path

from servekit.domain.project import FILE, Project, parse_project
from servekit.errors import ConfigError


def load(folder: Path) -> Project | None:
    """The project of ``folder``; None when it has no servekit.toml."""
    path = folder / FILE
    try:
        return parse_project(path.read_text(encoding="utf-8-sig"), str(path.name))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}.", hint="Save it as UTF-8 text.") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.", hint="It must be a file that you may read: servekit init"
        ) from error
