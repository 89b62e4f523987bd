"""What this worker tells the outside: one JSON file, which ``up`` and ``status`` read."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER_VARIABLE = "SERVEKIT_WORKER_REPORTS"
SCHEMA = 1


@dataclass(frozen=True)
class WorkerReport:
    """Times in seconds. ``device`` is ``cuda:N`` or ``cpu``; ``gpu_id`` is N as the server counts.

    ``warmup_s`` is None and ``warmup_batches`` empty when there was nothing to warm up with.
    """

    model: str
    pid: int
    device: str
    gpu_id: int | None
    gpu_uuid: str | None
    precision: str
    precision_reason: str
    threads: int
    load_s: float
    warmup_s: float | None
    warmup_batches: tuple[int, ...]
    torch: str
    schema: int = SCHEMA

    def write(self, folder: Path) -> Path:
        """Write ``<model>-<pid>.json`` into ``folder``; a reader sees the whole file or none."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.model}-{self.pid}.json"
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
        return path


def folder() -> Path | None:
    """Where reports go, from the environment; None when nobody asked for them."""
    value = os.environ.get(FOLDER_VARIABLE)
    return Path(value) if value else None
