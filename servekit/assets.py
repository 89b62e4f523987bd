"""Where handlers/, docker/, config/ and loadtests/ live: in a checkout, and once installed.

Only this module knows. A wheel carries the folders as ``servekit/_assets/`` (see pyproject.toml); a
checkout, also an editable install, has them beside the package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "_assets"
_ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent


def handlers() -> Path:
    """The folder that mirrors the root of an archive."""
    return _ROOT / "handlers"


def docker() -> Path:
    """Dockerfile and entrypoint."""
    return _ROOT / "docker"


def config() -> Path:
    """Templates of what a user edits, and the logging configuration of the server."""
    return _ROOT / "config"


def loadtests() -> Path:
    """The locustfile, run by Locust's own process."""
    return _ROOT / "loadtests"
