"""Everything a load-test report states, in one noun."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servekit.domain.gpu_load import GpuLoad
from servekit.domain.load import LoadProfile, LoadStats
from servekit.domain.slo import Verdict

SCHEMA = 1


@dataclass(frozen=True)
class LoadReport:
    """``elapsed_s`` is warm-up and measured window together; less than asked for when interrupted."""

    profile: LoadProfile
    stats: LoadStats
    gpus: tuple[GpuLoad, ...]
    gpu_note: str | None
    verdicts: tuple[Verdict, ...]
    first_answer_ms: float
    started: str
    elapsed_s: float
    interrupted: bool
    client_cpu_percent: float | None
    client_processes: int
    command: str
    server: Mapping[str, str]
    host: Mapping[str, str]

    @property
    def passed(self) -> bool | None:
        """None when no objective was set."""
        return all(verdict.met for verdict in self.verdicts) if self.verdicts else None

    @property
    def client_limited(self) -> bool:
        """A client process that is busy all the time measures itself, not the server."""
        return self.client_cpu_percent is not None and self.client_cpu_percent > 90

    def to_dict(self) -> dict[str, Any]:
        """As report.json holds it."""
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "client_limited": self.client_limited,
            "errors_percent": self.stats.errors_percent,
            **dataclasses.asdict(self),
        }
