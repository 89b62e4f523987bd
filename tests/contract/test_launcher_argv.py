"""Our command line of the frontend is the one that TorchServe's own launcher builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from servekit.backends.java import Runtime, server_argv
from servekit.domain.deployment import Paths
from servekit.system.java import torchserve_site

LAUNCHER = """
import json, subprocess, sys
class Started:
    pid = 1
    def __init__(self, argv):
        print(json.dumps(argv))
subprocess.Popen = Started
from ts.model_server import start
start()
"""

# What we add to the launcher's, each for a reason given in servekit/backends/java.py.
OURS = ("-XX:+ExitOnOutOfMemoryError", "-Dfile.encoding=UTF-8")


def launchers(paths: Paths) -> list[str]:
    """The argv that ``torchserve --start`` would run for this deployment."""
    options = (
        *("--start", "--ts-config", f"{paths.home}/config.properties", "--model-store", f"{paths.home}/models"),
        *("--log-config", f"{paths.home}/log4j2.xml", "--no-config-snapshots"),
    )
    env = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "TS_CONFIG_FILE")}
    env |= {"TEMP": str(paths.scratch), "TMPDIR": str(paths.scratch)}  # also where its pid file goes
    done = subprocess.run(
        (sys.executable, "-c", LAUNCHER, *options), env=env, capture_output=True, text=True, check=True, timeout=120
    )
    argv: list[str] = json.loads(done.stdout.strip().splitlines()[-1])
    return argv


def test_the_same_words_in_the_same_order(tmp_path: Path) -> None:
    home = tmp_path / "home"
    paths = Paths(home, tmp_path / "cache", tmp_path / "scratch")
    for folder in (home / "models", paths.scratch):
        folder.mkdir(parents=True)
    for file in ("config.properties", "log4j2.xml"):
        (home / file).touch()
    theirs = [word.removeprefix(".:") if word.endswith("frontend/*") else word for word in launchers(paths)]
    site = os.path.realpath(torchserve_site())
    ours = server_argv(Runtime("java", 17, sys.executable, site), paths)
    assert set(OURS) <= set(ours)
    assert [word for word in ours if word not in OURS and not word.startswith("-Dservekit.home=")] == theirs
