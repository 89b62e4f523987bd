"""The wheels of a lock, fetched into a folder for image builds and for hosts without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from servekit.domain.lock import Lock, normalised, render
from servekit.errors import ModelError, raise_together
from servekit.system import file_digest, storage
from servekit.system.proofs import scratch

_MANYLINUX = re.compile(r"(\w+?)-manylinux_2_(\d+)")
_OLDER = (39, 36, 35, 34, 31, 28, 27, 24, 17, 12, 5)
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def fetch(lock: Lock, folder: Path, progress: Callable[[str], None]) -> tuple[Path, ...]:
    """Fill ``folder`` with the wheels of ``lock``, whole or not at all; a complete one is left as it is.

    Raises ModelError when pip cannot fetch them.
    """
    if folder.is_dir() and not _problems(lock, folder):
        return tuple(sorted(folder.glob("*.whl")))
    progress(f"Fetching {len(lock.packages)} wheels into {folder} ...")
    with storage.explained(folder, 0), scratch.folder(folder.parent) as work:
        (work / "requirements.lock").write_text(render(lock), encoding="utf-8")
        argv = (
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--require-hashes", "--only-binary=:all:", "--implementation", "cp", "--python-version", lock.python),
            *(word for tag in platforms(lock.platform) for word in ("--platform", tag)),
            *("--dest", str(work / "wheels"), "-r", str(work / "requirements.lock")),
        )
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ModelError(
                "The wheels of the lock cannot be fetched.",
                hint="pip's reasons are above: the index must hold what was locked.",
                detail=done.stderr.strip(),
            )
        (work / "wheels").mkdir(exist_ok=True)  # an empty lock
        raise_together(ModelError, _problems(lock, work / "wheels"))
        if folder.exists():
            shutil.rmtree(folder)
        (work / "wheels").rename(folder)
    return tuple(sorted(folder.glob("*.whl")))


def check(lock: Lock, folder: Path) -> tuple[Path, ...]:
    """The wheels of ``lock`` in ``folder``. ModelError, with all of them, for what is missing or altered."""
    raise_together(ModelError, _problems(lock, folder), hint="Fetch them anew: servekit package ... --vendor-wheels")
    return tuple(sorted(folder.glob("*.whl")))


def platforms(platform: str) -> tuple[str, ...]:
    """pip's names of everything that a platform of uv's can install, newest first."""
    found = _MANYLINUX.fullmatch(platform)
    if not found:
        return (platform,)
    machine, newest = found[1], int(found[2])
    tags: list[str] = []
    for minor in (newest, *(older for older in _OLDER if older < newest)):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY:
            tags.append(f"{_LEGACY[minor]}_{machine}")
    return (*tags, f"linux_{machine}")


def _problems(lock: Lock, folder: Path) -> list[str]:
    there = {normalised(path.name.partition("-")[0]): path for path in sorted(folder.glob("*.whl"))}
    problems = []
    for package in lock.packages:
        path = there.get(package.name)
        if path is None:
            problems.append(f"{folder}: there is no wheel of {package.name} {package.version}.")
            continue
        if f"sha256:{file_digest.sha256(path)}" not in package.hashes:
            problems.append(f"{path} is not the wheel that was locked: its SHA-256 is another.")
    return problems
