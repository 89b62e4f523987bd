"""What ``docker build`` needs around it: a context folder, and a terminal for its output."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servekit import assets
from servekit.domain.plan import Argv
from servekit.errors import HostError, StorageError

WHEELHOUSE = "wheelhouse"


@contextlib.contextmanager
def context(wheels: tuple[Path, ...]) -> Iterator[Path]:
    """A temporary folder with docker/ and ``wheels``, which docker/Dockerfile looks for in wheelhouse/."""
    with tempfile.TemporaryDirectory(prefix="servekit-build-") as name:
        folder = Path(name)
        try:
            shutil.copytree(assets.docker(), folder, dirs_exist_ok=True)
            (folder / WHEELHOUSE).mkdir()
            for wheel in wheels:
                _link_or_copy(wheel, folder / WHEELHOUSE / wheel.name)
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
