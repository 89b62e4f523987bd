"""Service-level objectives: ``p99<50ms,errors<0.1%,throughput>100`` as clauses with a verdict each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from servekit.errors import ConfigError, raise_together

PERCENTILES = ("p50", "p75", "p90", "p95", "p99", "p99.9")
_LATENCIES = (*PERCENTILES, "max", "mean")
_CLAUSE = re.compile(r"([a-z][a-z0-9.]*)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+)\s*(us|ms|s|%|/s|rps)?")
_TO_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_ALLOWED = "Clauses are p50 p75 p90 p95 p99 p99.9 max mean (us, ms or s), errors (%) and throughput (/s)."


@dataclass(frozen=True)
class Clause:
    """One condition. ``limit`` is in ms for latencies, in percent for errors, in requests/s for throughput."""

    text: str
    measure: str
    operator: str
    limit: float


@dataclass(frozen=True)
class Verdict:
    """A clause and what was measured, in the clause's unit; ``measured`` None when nothing was."""

    clause: Clause
    measured: float | None
    met: bool


def parse_slo(text: str) -> tuple[Clause, ...]:
    """Raises one ConfigError for all clauses that cannot be read."""
    clauses: list[Clause] = []
    problems: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _CLAUSE.fullmatch(part)
        if not match:
            problems.append(f"--slo: {part!r} is not a condition.")
            continue
        measure, operator, number, unit = match.groups()
        wanted = _units(measure)
        if wanted is None:
            problems.append(f"--slo: {measure!r} is not measured.")
        elif unit not in wanted:
            problems.append(f"--slo: {part!r} needs a unit: {' or '.join(filter(None, wanted))}.")
        elif (measure == "throughput") != (operator[0] == ">"):
            problems.append(f"--slo: {part!r} would reward the wrong direction.")
        else:
            clauses.append(Clause(part, measure, operator, float(number) * _TO_MS.get(unit or "", 1.0)))
    if not clauses and not problems:
        problems.append("--slo is empty.")
    raise_together(ConfigError, problems, hint=_ALLOWED)
    return tuple(clauses)


def judge(clauses: tuple[Clause, ...], measured: Mapping[str, float | None]) -> tuple[Verdict, ...]:
    """``measured``: ms by latency name, ``errors`` in percent, ``throughput`` in requests/s."""
    return tuple(
        Verdict(clause, measured[clause.measure], _met(clause, measured[clause.measure])) for clause in clauses
    )


def _met(clause: Clause, value: float | None) -> bool:
    if value is None:  # nothing answered: no latency objective is met by that
        return False
    return {
        "<": value < clause.limit,
        "<=": value <= clause.limit,
        ">": value > clause.limit,
        ">=": value >= clause.limit,
    }[clause.operator]


def _units(measure: str) -> tuple[str | None, ...] | None:
    if measure in _LATENCIES:
        return ("us", "ms", "s")
    return {"errors": ("%",), "throughput": ("/s", "rps", None)}.get(measure)
