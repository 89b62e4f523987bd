"""A Docker engine of our own for tests that must decide what it finds on its PATH when it starts.

It has its own data, socket and containerd, and a network namespace of its own: an engine changes bridges and
firewall rules, and those of the machine belong to the engine that the other tests use.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HOOK = "nvidia-container-runtime-hook"
IMAGE = "nearly-empty"

# What the engine runs before a container's first process when GPUs were asked for. This one writes down
# what it is given: the engine tells the real one which devices to pass through the container's environment.
_RECORDING_HOOK = """#!/bin/sh
state=$(cat)
bundle=$(printf %s "$state" | sed -n 's/.*"bundle":"\\([^"]*\\)".*/\\1/p')
cp "$bundle/config.json" "{record}"
"""


def need_private_engine() -> None:
    """Skip, with the reason, where such an engine cannot be started."""
    if os.getuid() != 0:
        pytest.skip("starting a Docker engine needs root")
    for program in ("dockerd", "unshare"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")


@contextlib.contextmanager
def private_engine(hook_record: Path | None = None) -> Iterator[str]:
    """An engine, as a value for DOCKER_HOST, that holds the image ``nearly-empty``.

    With ``hook_record`` a hook of ours stands where the NVIDIA Container Toolkit's would, and copies the
    configuration of each container that asks for GPUs there.
    """
    with tempfile.TemporaryDirectory(prefix="sk-engine-") as name:  # short: it holds sockets
        folder = Path(name)
        path = os.environ["PATH"]
        if hook_record is not None:
            (folder / "bin").mkdir()
            hook = folder / "bin" / HOOK
            hook.write_text(_RECORDING_HOOK.format(record=hook_record))
            hook.chmod(0o755)
            path = f"{folder / 'bin'}:{path}"
        host = f"unix://{folder}/docker.sock"
        argv = ("unshare", "--net", "--", "dockerd", "--host", host, "--pidfile", f"{folder}/pid")
        argv += ("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--iptables=false")
        with (folder / "log").open("wb") as log:
            engine = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, "PATH": path})
        try:
            _wait(host, engine, folder / "log")
            _docker(host, "import", "-", IMAGE, stdin=_rootfs())
            yield host
        finally:
            engine.terminate()
            engine.wait(timeout=60)


def _wait(host: str, engine: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        if _docker(host, "version", check=False).returncode == 0:
            return
        if engine.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError("dockerd did not start:\n" + log.read_text(errors="replace")[-3000:])


def _docker(
    host: str, *args: str, stdin: bytes | None = None, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(("docker", "--host", host, *args), input=stdin, capture_output=True, check=check)


def _rootfs() -> bytes:
    """An image needs a file. Nothing of it runs: the engine decides about GPUs before the first process."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    return archive.getvalue()
