"""A deployment: models, GPUs and a server under one name; and the record of one that runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servekit.domain.gpu import Gpu, GpuPlan
from servekit.domain.server import Ports, ServerConfig

STATE_SCHEMA = 1


@dataclass(frozen=True)
class ServedModel:
    """An archive as this deployment serves it.

    ``unpacked`` is the archive's folder in the content-addressed cache, shared by all deployments.
    ``members`` are its files, relative. ``config`` is the archive's own model-config.yaml as a mapping;
    the deployment's file starts from it. ``manifest`` is MAR-INF/MANIFEST.json. ``example`` is relative
    to ``unpacked``. ``precision`` None leaves the archive's own; ``proof`` says where it was proven.
    """

    name: str
    version: str
    sha256: str
    archive: Path
    unpacked: Path
    members: tuple[str, ...]
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    workers: int
    batch_size: int
    max_batch_delay_ms: int
    threads: int
    example: str | None = None
    precision: str | None = None
    precision_reason: str | None = None
    proof: str = ""

    @property
    def handler_kind(self) -> str:
        """``image``, ``tensor`` or ``custom`` for archives of ours, ``foreign`` for others."""
        handler = self.config.get("handler")
        return str(handler.get("kind", "foreign")) if isinstance(handler, Mapping) else "foreign"


@dataclass(frozen=True)
class Paths:
    """The folders of a deployment as somebody sees them: the host, or the inside of a container."""

    home: Path
    """config.properties, log4j2.xml, key_file.json, models/, logs/, workers/"""
    cache: Path
    """unpacked archives, one folder a SHA-256"""
    scratch: Path
    """temporary files and worker sockets; short, since a socket's path holds 108 bytes"""


@dataclass(frozen=True)
class Deployment:
    """Everything a backend needs to write a Plan. ``host`` paths are ours, ``inside`` the server's."""

    name: str
    models: tuple[ServedModel, ...]
    gpus: GpuPlan
    server: ServerConfig
    ports: Ports
    runtime: str
    host: Paths
    inside: Paths
    image: str | None = None

    @property
    def worker_count(self) -> int:
        return sum(model.workers for model in self.models)


@dataclass(frozen=True)
class ModelState:
    """One served model in state.json."""

    name: str
    version: str
    workers: int
    batch_size: int
    sha256: str
    archive: str
    example: str | None
    """absolute path on the host, or None"""
    handler_kind: str
    proof: str = ""
    """where it was proven when it was started, or that it was not"""

    @property
    def unproven(self) -> str | None:
        """What every command says of a model that was started without a proof; None for one that has it."""
        if not self.proof.startswith("not proven"):
            return None
        return f"{self.name}: {self.proof}; make a proof with: servekit verify {self.name}"


@dataclass(frozen=True)
class State:
    """What ``up`` leaves behind for status, predict, logs, loadtest and down. Stored as state.json."""

    name: str
    runtime: str
    bind: str
    ports: Ports
    auth: bool
    home: str
    scratch: str
    gpus: tuple[Gpu, ...]
    models: tuple[ModelState, ...]
    started_at: float
    """seconds since the epoch"""
    container: str | None = None
    image: str | None = None
    schema: int = STATE_SCHEMA

    @property
    def inference_url(self) -> str:
        return f"http://{_reachable(self.bind)}:{self.ports.inference}"

    @property
    def management_url(self) -> str:
        return f"http://{_reachable(self.bind)}:{self.ports.management}"

    @property
    def key_file(self) -> Path:
        return Path(self.home) / "key_file.json"

    def model(self, name: str) -> ModelState | None:
        return next((model for model in self.models if model.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        gpus = tuple(Gpu(**{**gpu, "compute_capability": _pair(gpu.get("compute_capability"))}) for gpu in data["gpus"])
        models = tuple(ModelState(**model) for model in data["models"])
        return cls(**{**data, "ports": Ports(**data["ports"]), "gpus": gpus, "models": models})


def _pair(value: Any) -> tuple[int, int] | None:
    return (int(value[0]), int(value[1])) if value else None


def _reachable(bind: str) -> str:
    """An address as a URL holds it, to connect to: 0.0.0.0 means everywhere, so also loopback."""
    if bind in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    return f"[{bind}]" if ":" in bind else bind
