"""The files and folders of a deployment, the same for every backend."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from servekit import assets
from servekit.domain.deployment import Deployment, ServedModel
from servekit.domain.plan import Link, MakeFolder, Step, WriteFile
from servekit.render.config_properties import config_properties
from servekit.render.deployed_config import CONFIG_FILE, deployed_config, deployed_manifest

Owner = tuple[int, int] | None


def deployment_files(deployment: Deployment, *, owner: Owner = None) -> tuple[Step, ...]:
    """Home folder, configuration, logging, and one folder of links a model.

    ``owner`` (uid, gid) is who runs the server when that is not us.
    """
    home = deployment.host.home
    mode = 0o600 if owner is None else 0o644
    folder_mode = 0o700 if owner is None else 0o755
    log4j2 = (assets.config() / "log4j2.xml").read_text(encoding="utf-8")
    steps: list[Step] = [
        MakeFolder(home, folder_mode, owner),
        MakeFolder(home / "logs", 0o700, owner),
        MakeFolder(home / "workers", 0o700, owner),
        MakeFolder(home / "models", folder_mode),
        WriteFile(home / "config.properties", config_properties(deployment), mode),
        WriteFile(home / "log4j2.xml", log4j2, mode),
    ]
    for model in deployment.models:
        steps += _model_folder(model, deployment, folder_mode, mode)
    return tuple(steps)


def _model_folder(model: ServedModel, deployment: Deployment, folder_mode: int, mode: int) -> list[Step]:
    """TorchServe's no-archive form: links into the cache, but a manifest and a configuration of our own."""
    folder = deployment.host.home / "models" / model.name
    inside = deployment.inside.cache / model.sha256
    config = yaml.safe_dump(deployed_config(model, deployment), sort_keys=False, allow_unicode=True)
    manifest = json.dumps(deployed_manifest(model), indent=2, ensure_ascii=False) + "\n"
    top_level = sorted({Path(member).parts[0] for member in model.members} - {"MAR-INF", CONFIG_FILE})
    return [
        MakeFolder(folder, folder_mode),
        MakeFolder(folder / "MAR-INF", folder_mode),
        WriteFile(folder / "MAR-INF" / "MANIFEST.json", manifest, mode),
        WriteFile(folder / CONFIG_FILE, config, mode),
        *(Link(folder / name, str(inside / name)) for name in top_level),
    ]
