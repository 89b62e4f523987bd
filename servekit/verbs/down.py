"""``down``: stop a deployment and remove what it left."""

from __future__ import annotations

import contextlib
from pathlib import Path

from servekit.domain.deployment import Paths
from servekit.errors import NotRunningError
from servekit.system import deployments, docker, execute, process, signals
from servekit.verbs.lost import lost


def down(root: Path, name: str | None) -> str:
    """Stop the deployment called ``name``, or the only one. Returns its name; raises NotRunningError."""
    left_alone = lost(root)
    if name is None:
        homes = (*deployments.homes(root), *left_alone)
        name = homes[0].name if len(homes) == 1 else deployments.find(root, None).name
    host = deployments.host_paths(root, name)
    with deployments.lock(root, name):
        if not host.home.exists() and host.home not in left_alone:
            raise NotRunningError(f"There is no deployment {name!r} in {root}.", hint="See: servekit status")
        state = deployments.load(host.home)
        with signals.held_back():
            if host.home in left_alone:  # nobody wrote down where it ran
                process.stop(host.home)
                if host.home in docker.homes():
                    docker.remove(host.home)
            take_down(host, state.runtime if state else "local")
    return name


def take_down(host: Paths, runtime: str) -> None:
    """End processes or containers by their label and delete the deployment's folders. Safe to repeat."""
    if runtime == "docker":
        docker.remove(host.home)
    else:
        process.stop(host.home)
    execute.remove(host.home, host.scratch)
    with contextlib.suppress(OSError):  # the last one takes the empty parent with it
        host.home.parent.rmdir()
