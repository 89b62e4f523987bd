"""Carry out a Plan, and take it back when it fails half-way."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from servekit.domain.plan import Link, MakeFolder, Plan, RunCommand, StartProcess, WriteFile
from servekit.errors import HostError, StorageError


@dataclass
class Done:
    """What running a plan produced."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def run(plan: Plan) -> Done:
    """Every step in order. StorageError when a folder or file cannot be written, HostError from a command."""
    done = Done()
    for step in plan.steps:
        try:
            if isinstance(step, MakeFolder):
                _make_folder(step)
            elif isinstance(step, WriteFile):
                _write_file(step)
            elif isinstance(step, Link):
                step.path.symlink_to(step.target)
            elif isinstance(step, StartProcess):
                done.processes.append(_start(step))
            elif isinstance(step, RunCommand):
                done.outputs.append(_command(step))
        except OSError as error:
            path = error.filename or getattr(step, "path", "")
            raise StorageError(
                f"{path}: {error.strerror}.", hint="Check the permissions and free space of that folder."
            ) from error
    return done


def remove(*folders: Path) -> None:
    """Delete what a deployment left on disk. Links are removed, never followed."""
    for path in folders:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def _make_folder(step: MakeFolder) -> None:
    step.path.mkdir(parents=True, exist_ok=True)
    if step.path.is_symlink() or step.path.stat().st_uid != os.getuid():
        # The scratch folder's name can be guessed, and /tmp is everybody's.
        raise PermissionError(errno.EPERM, "belongs to another user", str(step.path))
    step.path.chmod(step.mode)
    if step.owner is not None:
        os.chown(step.path, *step.owner)


def _write_file(step: WriteFile) -> None:
    temporary = step.path.with_name(f".{step.path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, step.mode)
    try:
        os.fchmod(descriptor, step.mode)  # the umask may have narrowed it; a container's user must read it
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(step.text)
        temporary.replace(step.path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _start(step: StartProcess) -> subprocess.Popen[bytes]:
    descriptor = os.open(step.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666 & ~step.umask)
    with os.fdopen(descriptor, "ab") as log:
        return subprocess.Popen(
            step.argv,
            cwd=step.cwd,
            env=dict(step.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A session of its own: Ctrl-C in this terminal is ours to handle, and down can find the family.
            start_new_session=True,
            umask=step.umask,
        )


def _command(step: RunCommand, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(step.argv, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise HostError(
            f"`{' '.join(step.argv[:3])} ...` failed with exit code {done.returncode}.",
            detail=(done.stderr or done.stdout).strip(),
        )
    return done.stdout.strip()
