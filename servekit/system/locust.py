"""Locust, as a child process: importing it would patch the standard library of this one."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servekit import assets
from servekit.domain.load import Record
from servekit.errors import HostError

# As in loadtests/locustfile.py: start (ns), latency (ns), status, error number, bytes.
_RECORD = struct.Struct("<QQHHI")
_CUT_OFF = "no answer when the test ended"  # as in loadtests/locustfile.py
_STOP_GRACE_S = 10
# gevent does about a thousand requests a second on a core; beyond that the client would be the limit.
_USERS_PER_PROCESS = 32


@dataclass(frozen=True)
class Payload:
    file: Path
    content_type: str


@dataclass(frozen=True)
class LoadJob:
    """What Locust is told. Times in seconds."""

    url: str
    path: str
    payloads: tuple[Payload, ...]
    key_file: Path | None
    users: int
    duration_s: float
    timeout_s: float = 60.0


@dataclass
class Outcome:
    """What Locust did. ``t0_s`` is the start on CLOCK_MONOTONIC; ``end_s`` when it was told to stop."""

    records: list[Record] = field(default_factory=list)
    t0_s: float = 0.0
    end_s: float = 0.0
    processes: int = 1
    client_cpu_percent: float | None = None
    interrupted: bool = False


def processes_for(users: int, cores: int) -> int:
    """How many Locust processes send: half the cores at most, the other half is the server's."""
    return max(1, min(cores // 2, users // _USERS_PER_PROCESS))


def run(job: LoadJob, folder: Path, progress: Callable[[float, Sequence[Record]], None]) -> Outcome:
    """Send the load and return every record. ``progress`` gets (seconds, new records) about once a second.

    Ctrl-C ends the run early, with what there is. HostError when Locust itself fails.
    """
    plan = {
        "path": job.path,
        "payloads": [{"file": str(p.file), "content_type": p.content_type} for p in job.payloads],
        "key_file": str(job.key_file) if job.key_file else None,
        "records": str(folder),
        "timeout_s": job.timeout_s,
    }
    plan_file = folder / "plan.json"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    count = processes_for(job.users, len(os.sched_getaffinity(0)))
    log = folder / "locust.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            _argv(job, count),
            env=_environment(plan_file),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    outcome = Outcome(processes=count)
    try:
        _watch(child, job, folder, outcome, progress)
    finally:
        _end(child)
    started = _started(folder)
    if started is None:
        raise HostError("Locust did not start.", detail=log.read_text(encoding="utf-8", errors="replace")[-3000:])
    outcome.t0_s = started
    records = [record for path in sorted(folder.glob("*.records")) for record in _read(path, started)]
    # Ctrl-C cuts requests off that were about to be answered; that is no failure of the server. At the end of
    # a whole test they had the grace time and did not use it: that is one.
    outcome.records = [record for record in records if not (outcome.interrupted and record.error == _CUT_OFF)]
    outcome.end_s = min(job.duration_s, outcome.end_s - started)
    return outcome


def _argv(job: LoadJob, processes: int) -> tuple[str, ...]:
    spread = ("--processes", str(processes)) if processes > 1 else ()
    return (
        sys.executable,
        "-m",
        "locust",
        "--locustfile",
        str(assets.loadtests() / "locustfile.py"),
        "--headless",
        "--host",
        job.url,
        "--users",
        str(job.users),
        "--spawn-rate",
        str(job.users),
        "--run-time",
        f"{math.ceil(job.duration_s)}s",  # Locust knows whole seconds only; what is sent beyond the end is left out
        "--stop-timeout",
        str(_STOP_GRACE_S),
        "--exit-code-on-error",
        "0",
        "--only-summary",
        "--loglevel",
        "WARNING",
        *spread,
    )


def _environment(plan_file: Path) -> dict[str, str]:
    """Ours, without the LOCUST_* variables that would change the run, and never through a proxy."""
    dropped = ("LOCUST_", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return {**kept, "SERVEKIT_LOADTEST": str(plan_file)}


def _watch(
    child: subprocess.Popen[bytes],
    job: LoadJob,
    folder: Path,
    outcome: Outcome,
    progress: Callable[[float, Sequence[Record]], None],
) -> None:
    """Until Locust ends, or does not when it should, or the user has seen enough."""
    begun = time.monotonic()
    limit = begun + 30 + job.duration_s + _STOP_GRACE_S + 20
    positions: dict[Path, int] = {}
    started: float | None = None
    meter = _CpuMeter(child.pid)
    try:
        while child.poll() is None and time.monotonic() < limit:
            time.sleep(1.0 if started else 0.2)
            started = started or _started(folder)
            if started is None:
                continue
            meter.look()
            fresh = [record for path in folder.glob("*.records") for record in _fresh(path, started, positions)]
            progress(min(time.monotonic() - started, job.duration_s), fresh)
    except KeyboardInterrupt:
        outcome.interrupted = True
    outcome.end_s = time.monotonic()
    outcome.client_cpu_percent = meter.median_percent


def _end(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets Locust write its last records; then the whole session goes."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=_STOP_GRACE_S + 5)
        except subprocess.TimeoutExpired:
            child.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class _CpuMeter:
    """CPU of the client processes between two looks, in percent of one core."""

    def __init__(self, pid: int) -> None:
        self._pid, self._last = pid, dict[int, tuple[float, float]]()
        self._busiest: list[float] = []

    def look(self) -> None:
        import psutil

        shares = []
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self._pid)
            for process in (parent, *parent.children(recursive=True)):
                times, now = process.cpu_times(), time.monotonic()
                used = times.user + times.system
                if process.pid in self._last:
                    before, then = self._last[process.pid]
                    shares.append(100 * (used - before) / max(now - then, 1e-3))
                self._last[process.pid] = used, now
        if shares:
            self._busiest.append(max(shares))

    @property
    def median_percent(self) -> float | None:
        """Of the busiest process at each look; None when there was no time to look twice."""
        return statistics.median(self._busiest) if self._busiest else None


def _started(folder: Path) -> float | None:
    times = [text for path in folder.glob("*.started") if (text := path.read_text(encoding="ascii"))]
    return min(int(text) for text in times) / 1e9 if times else None


def _read(path: Path, started: float) -> list[Record]:
    texts = _errors(path.with_suffix(".errors"))
    block = path.read_bytes()
    whole = len(block) - len(block) % _RECORD.size
    return [_record(fields, started, texts) for fields in _RECORD.iter_unpack(block[:whole])]


def _fresh(path: Path, started: float, positions: dict[Path, int]) -> list[Record]:
    position = positions.get(path, 0)
    with path.open("rb") as file:
        file.seek(position)
        block = file.read()
    whole = len(block) - len(block) % _RECORD.size
    positions[path] = position + whole
    return [_record(fields, started, {}) for fields in _RECORD.iter_unpack(block[:whole])]


def _record(fields: tuple[int, ...], started: float, texts: Mapping[int, str]) -> Record:
    start_ns, latency_ns, status, error, _size = fields
    return Record(start_ns / 1e9 - started, latency_ns / 1e6, status, texts.get(error, "other") if error else "")


def _errors(path: Path) -> dict[int, str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {number: json.loads(line) for number, line in enumerate(lines, start=1)}
