"""A load test's numbers: from records of full resolution to what a report states.

Latency statistics are of answered requests (HTTP 200) that *started* in the measured window; failures are
counted apart. Percentiles are nearest-rank: the smallest latency such that at least p % are not above it,
so each is a latency that somebody had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servekit.domain.slo import PERCENTILES

MAX_BUCKETS = 600


@dataclass(frozen=True)
class LoadProfile:
    """What was asked for. Times in seconds."""

    model: str
    users: int
    duration_s: float
    warmup_s: float
    payloads: int
    slo: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One request. ``start_s`` counts from the start of the test; ``status`` 0 means no answer."""

    start_s: float
    latency_ms: float
    status: int
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def end_s(self) -> float:
        return self.start_s + self.latency_ms / 1000


@dataclass(frozen=True)
class Latency:
    """Milliseconds over ``count`` requests."""

    count: int
    mean: float
    min: float
    max: float
    percentiles: tuple[tuple[str, float], ...]

    def value(self, name: str) -> float:
        return {"mean": self.mean, "max": self.max, **dict(self.percentiles)}[name]


@dataclass(frozen=True)
class Failure:
    """Failed requests of one kind. Times in seconds from the start of the test."""

    status: int
    message: str
    count: int
    first_s: float
    last_s: float


@dataclass(frozen=True)
class Bucket:
    """One slice of time. Latencies in ms of the requests in flight during it; None when there were none.

    In flight, not completed: a closed loop sends nothing during a stall, so the seconds that hurt are the
    ones in which nothing completes.
    """

    start_s: float
    throughput: float
    errors: float
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True)
class LoadStats:
    """Of the measured window, except ``series``, which also shows the warm-up."""

    window_s: float
    sent: int
    answered: int
    throughput: float
    latency: Latency | None
    failures: tuple[Failure, ...]
    bucket_s: float
    series: tuple[Bucket, ...]

    @property
    def errors_percent(self) -> float | None:
        """None when nothing was sent in the measured window: that is neither success nor failure."""
        return 100.0 * (self.sent - self.answered) / self.sent if self.sent else None

    def measured(self) -> dict[str, float | None]:
        """By the names that an SLO uses."""
        names = (*PERCENTILES, "max", "mean")
        latencies = {name: self.latency.value(name) if self.latency else None for name in names}
        return {**latencies, "errors": self.errors_percent, "throughput": self.throughput}


def summarise(records: Sequence[Record], warmup_s: float, end_s: float) -> LoadStats:
    """Statistics of the window [warmup_s, end_s); ``end_s`` is when the test was told to stop."""
    window = max(end_s - warmup_s, 1e-9)
    inside = [record for record in records if warmup_s <= record.start_s < end_s]
    good = [record for record in inside if record.ok]
    completed = sum(1 for record in records if record.ok and warmup_s <= record.end_s < end_s)
    width = max(1.0, math.ceil(end_s / MAX_BUCKETS))
    return LoadStats(
        window_s=window,
        sent=len(inside),
        answered=len(good),
        throughput=completed / window,
        latency=latency([record.latency_ms for record in good]),
        failures=_failures(inside),
        bucket_s=width,
        series=series(records, end_s, width),
    )


def latency(values_ms: Sequence[float]) -> Latency | None:
    """None of nothing: there is no latency without an answer."""
    if not values_ms:
        return None
    ordered = sorted(values_ms)
    return Latency(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        min=ordered[0],
        max=ordered[-1],
        percentiles=tuple((name, percentile(ordered, float(name[1:]))) for name in PERCENTILES),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile of values in ascending order."""
    # Rounded first: 99.9 / 100 * 1000 is 999.0000000000001 to a computer.
    rank = math.ceil(round(percent * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


def series(records: Sequence[Record], end_s: float, width_s: float) -> tuple[Bucket, ...]:
    """Buckets of ``width_s`` from 0 to ``end_s``."""
    count = max(1, math.ceil(end_s / width_s - 1e-9))
    in_flight: list[list[float]] = [[] for _ in range(count)]
    completed, failed = [0] * count, [0] * count
    for record in records:
        first, last = int(record.start_s // width_s), int(record.end_s // width_s)
        if 0 <= last < count:
            (completed if record.ok else failed)[last] += 1
        if record.ok or record.status == 0:
            for bucket in range(max(first, 0), min(last, count - 1) + 1):
                in_flight[bucket].append(record.latency_ms)
    buckets = []
    for number, values in enumerate(in_flight):
        values.sort()
        span = min(width_s, end_s - number * width_s)
        p50, p95, p99 = (percentile(values, p) if values else None for p in (50, 95, 99))
        buckets.append(Bucket(number * width_s, completed[number] / span, failed[number] / span, p50, p95, p99))
    return tuple(buckets)


def _failures(records: Sequence[Record]) -> tuple[Failure, ...]:
    kinds: dict[tuple[int, str], list[float]] = {}
    for record in records:
        if not record.ok:
            kinds.setdefault((record.status, record.error), []).append(record.end_s)
    found = [Failure(status, text, len(times), min(times), max(times)) for (status, text), times in kinds.items()]
    return tuple(sorted(found, key=lambda failure: (-failure.count, failure.first_s)))
