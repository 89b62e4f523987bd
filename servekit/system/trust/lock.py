"""Requirements resolved into a lock, by uv in a child process; and what is installed here."""

from __future__ import annotations

import importlib.metadata
import os
import platform as host
import re
import subprocess
import sys
from pathlib import Path

from servekit.domain import lock as nouns
from servekit.domain.lock import Lock, normalised, render
from servekit.errors import ConfigError, HostError, ModelError, raise_together
from servekit.system.trust import pip_settings

__all__ = ["installed", "parse", "render", "resolve"]

_PYTHON = re.compile(r"3\.\d{1,2}")
# What has no hash and no place in a lock: checkouts, folders, bare addresses, options that pull in others.
_LOOSE = re.compile(r"^(-e\b|--editable\b|git\+|hg\+|svn\+|bzr\+|https?:|file:|\.{0,2}/|.*@\s*(git\+|https?:|file:))")


def resolve(requirements: Path, python: str | None, platform: str | None) -> Lock:
    """Resolve a requirements file into exact versions with hashes, wheels only.

    ``python`` (X.Y) and ``platform`` (as uv names it) default to this interpreter's. Raises ConfigError for lines
    that no lock can hold, ModelError when nothing fits together, HostError without uv.
    """
    python = python or f"{sys.version_info.major}.{sys.version_info.minor}"
    platform = platform or f"{host.machine()}-manylinux_2_28"
    if not _PYTHON.fullmatch(python):
        raise ConfigError(f"--python {python!r} cannot be read.", hint="Write it as 3.11.")
    _check_lines(requirements)
    argv = (
        *(_uv(), "pip", "compile", str(requirements), "--generate-hashes", "--quiet", "--no-header", "--no-annotate"),
        *("--python-version", python, "--python-platform", platform, "--only-binary", ":all:", "--no-config"),
        *pip_settings.for_uv(),
    )
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **pip_settings.env()})
    if done.returncode != 0:
        raise ModelError(
            f"{requirements} cannot be resolved for Python {python} on {platform}.",
            hint="uv's reasons are above. Only wheels count: what is installed must not need a compiler.",
            detail=done.stderr.strip(),
        )
    try:
        return Lock(python, platform, nouns.packages(done.stdout))
    except ValueError as error:
        raise ModelError(f"{requirements}: uv resolved it to something that is no lock: {error}.") from error


def parse(text: str, where: str = "requirements.lock") -> Lock:
    """A lock out of an archive. ModelError for a text that is none."""
    try:
        return nouns.parse(text)
    except ValueError as error:
        raise ModelError(f"{where} is no lock that this servekit reads: {error}.") from error


def installed() -> dict[str, str]:
    """Normalised name -> version of everything in this interpreter's environment, which is the one that serves."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(normalised(name), distribution.version)
    return found


def _check_lines(requirements: Path) -> None:
    try:
        lines = requirements.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"requirements {requirements} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"requirements {requirements} is not UTF-8: {error}.") from error
    problems = [
        f"{requirements}:{number}: {line.strip()!r} has no fixed content: a lock holds releases with hashes."
        for number, line in enumerate(lines, start=1)
        if _LOOSE.match(line.strip())
    ]
    raise_together(ConfigError, problems, hint="Publish it as a wheel on an index, and name it with its version.")


def _uv() -> str:
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise HostError("Locking requirements needs uv.", hint="Install it: pip install 'servekit[trust]'") from error
