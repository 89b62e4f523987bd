"""What workers of ours say of themselves: one JSON file a worker (docs/architecture/00-overview.md)."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WorkerReport:
    """Times in seconds. ``device`` is torch's name for it: ``cpu`` or ``cuda:N`` with the server's ordinal."""

    model: str
    pid: int
    device: str
    gpu_uuid: str | None
    precision: str
    precision_reason: str
    threads: int
    load_s: float
    warmup_s: float | None


def read(home: Path) -> dict[tuple[str, int], WorkerReport]:
    """Reports of a deployment by (model, pid). Foreign handlers write none; a torn file counts as none."""
    found = {}
    for path in sorted((home / "workers").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(path.read_text(encoding="utf-8"))
            report = WorkerReport(
                model=data["model"],
                pid=int(data["pid"]),
                device=data["device"],
                gpu_uuid=data.get("gpu_uuid"),
                precision=data["precision"],
                precision_reason=data.get("precision_reason", ""),
                threads=int(data["threads"]),
                load_s=float(data["load_s"]),
                warmup_s=data.get("warmup_s"),
            )
            found[report.model, report.pid] = report
    return found
