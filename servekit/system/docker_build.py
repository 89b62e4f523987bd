"""What ``docker build`` needs around it: a context folder, and a terminal for its output."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servekit import assets
from servekit.domain.plan import Argv
from servekit.errors import HostError, StorageError

WHEELHOUSE = "wheelhouse"
MODELS = "models"


@dataclass(frozen=True)
class Needs:
    """What one model needs in the image: its lock, and the wheels fetched for it (none: from an index)."""

    name: str
    lock: str
    wheels: tuple[Path, ...] = ()


@contextlib.contextmanager
def context(wheels: tuple[Path, ...], needs: tuple[Needs, ...] = ()) -> Iterator[Path]:
    """A temporary folder with docker/, ``wheels`` in wheelhouse/, and what models need in models/."""
    with tempfile.TemporaryDirectory(prefix="servekit-build-") as name:
        folder = Path(name)
        try:
            shutil.copytree(assets.docker(), folder, dirs_exist_ok=True)
            (folder / WHEELHOUSE).mkdir()
            for wheel in wheels:
                _link_or_copy(wheel, folder / WHEELHOUSE / wheel.name)
            for name in ("locks", "vendored"):
                (folder / MODELS / name).mkdir(parents=True)
            for need in needs:
                (folder / MODELS / "locks" / f"{need.name}.lock").write_text(need.lock, encoding="utf-8")
                for wheel in need.wheels:
                    if not (folder / MODELS / "vendored" / wheel.name).exists():
                        _link_or_copy(wheel, folder / MODELS / "vendored" / wheel.name)
        except OSError as error:
            raise StorageError(
                f"The build's files cannot be laid out in {folder}: {error.strerror or error}.",
                hint="TMPDIR names another folder for them.",
            ) from error
        yield folder


def run(argv: Argv) -> None:
    """Run the build, all of its output on our stderr: stdout is for our result. HostError when it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=2, check=False)
    if done.returncode != 0:
        raise HostError(
            f"docker build failed with exit code {done.returncode}.",
            hint="Its output is above. Without a network in containers, give it wheels: servekit build --wheelhouse.",
        )


def _link_or_copy(source: Path, target: Path) -> None:
    """Wheels of torch are large: a hard link where the file system has them."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)
