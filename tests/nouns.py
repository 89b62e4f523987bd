"""Nouns to test with: small, complete, and different from every default where that could hide a mistake."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from servekit.domain.deployment import Deployment, ModelState, Paths, ServedModel, State
from servekit.domain.gpu import Gpu, GpuPlan
from servekit.domain.server import Ports, ServerConfig

SHA = "0123456789abcdef" * 4
HOME = Path("/srv/demo/.servekit/deployments/default")
HOST = Paths(home=HOME, cache=Path("/srv/demo/.servekit/cache"), scratch=Path("/tmp/servekit-0123456789ab"))


def gpu(index: int, name: str = "NVIDIA H100") -> Gpu:
    return Gpu(index, f"GPU-{index:08x}-aaaa", name, 81_559, 81_000, (9, 0))


def served(name: str = "digits", **changes: Any) -> ServedModel:
    """An image model of ours with one worker."""
    config = {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 4,
        "maxBatchDelay": 7,
        "handler": {"schema": 1, "kind": "image", "precision": "auto"},
    }
    manifest = {
        "createdOn": "01/01/1980 00:00:00",
        "runtime": "python3",
        "model": {"modelName": name, "handler": "image_handler.py", "configFile": "their.yaml"},
        "archiverVersion": "0.12.0",
    }
    fields: dict[str, Any] = {
        "name": name,
        "version": "1.0",
        "sha256": SHA,
        "archive": Path(f"/srv/demo/model_store/{name}.mar"),
        "unpacked": HOST.cache / SHA,
        "members": ("MAR-INF/MANIFEST.json", "image_handler.py", "model-config.yaml", "servekit_worker/a.py", "w.pt"),
        "manifest": manifest,
        "config": config,
        "workers": 1,
        "batch_size": 8,
        "max_batch_delay_ms": 5,
        "threads": 3,
        "example": "example/a.png",
    }
    return ServedModel(**{**fields, **changes})


def deployment(*models: ServedModel, gpus: tuple[Gpu, ...] = (), **changes: Any) -> Deployment:
    fields: dict[str, Any] = {
        "name": "default",
        "models": models or (served(),),
        "gpus": GpuPlan(gpus),
        "server": ServerConfig(),
        "ports": Ports.block(8080),
        "runtime": "local",
        "host": HOST,
        "inside": HOST,
    }
    return Deployment(**{**fields, **changes})


def at_home(home: str) -> Paths:
    return dataclasses.replace(HOST, home=Path(home))


def state(home: Path = HOME, **changes: Any) -> State:
    model = ModelState("digits", "1.0", 2, 8, SHA, "/srv/demo/model_store/digits.mar", "/srv/example.png", "image")
    fields: dict[str, Any] = {
        "name": home.name,
        "runtime": "local",
        "bind": "127.0.0.1",
        "ports": Ports.block(8090),
        "auth": True,
        "home": str(home),
        "scratch": "/tmp/servekit-0123456789ab",
        "gpus": (gpu(1), gpu(3)),
        "models": (model,),
        "started_at": 1_764_000_000.25,
    }
    return State(**{**fields, **changes})
