"""Servers that run on although their deployment's folder was deleted: found by their label."""

from __future__ import annotations

from pathlib import Path

from servekit.system import deployments, docker, process


def lost(root: Path) -> tuple[Path, ...]:
    """Homes of this project that have a server or a container, but no folder any more."""
    folder = deployments.of_home(root)
    labelled = {*process.labelled(folder), *(home for home in docker.homes() if home.parent == folder)}
    return tuple(sorted(home for home in labelled if not home.exists()))
