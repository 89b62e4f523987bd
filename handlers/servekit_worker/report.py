"""What this worker is: said in the log, and written for servekit to read."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_log = logging.getLogger(__name__)
SCHEMA = 1


@dataclass(frozen=True)
class WorkerReport:
    """Times in seconds; ``warmup_s`` None means: not warmed up."""

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

    def publish(self) -> None:
        """Into ``$SERVEKIT_WORKER_REPORTS/<model>-<pid>.json``, whole or not at all, and into the log."""
        warm = f"warmed up in {self.warmup_s:.2f} s" if self.warmup_s is not None else "not warmed up"
        _log.info(
            "servekit: %s pid %d on %s, precision %s (%s), %d thread(s), loaded in %.2f s, %s",
            self.model,
            self.pid,
            self.device,
            self.precision,
            self.precision_reason,
            self.threads,
            self.load_s,
            warm,
        )
        folder = os.environ.get("SERVEKIT_WORKER_REPORTS")
        if not folder:
            return
        path = Path(folder) / f"{self.model}-{self.pid}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"schema": SCHEMA, **asdict(self)}), encoding="utf-8")
        temporary.replace(path)
