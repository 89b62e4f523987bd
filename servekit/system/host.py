"""What a number was measured on: machine and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

from servekit import __version__

_PACKAGES = ("torch", "torchserve", "locust", "numpy", "pillow")


def identity() -> dict[str, str]:
    """Label -> value, ready to be printed."""
    memory = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    return {
        "CPU": f"{_cpu_model()}, {cores} cores",
        "Memory": f"{memory:.0f} GiB",
        "Kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "servekit": __version__,
        **{name: version for name in _PACKAGES if (version := _version(name))},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
