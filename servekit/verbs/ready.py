"""Wait until every wanted worker is READY and has answered; know at once when that cannot happen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from servekit.domain.deployment import Deployment, ServedModel, State
from servekit.domain.gpu import Gpu
from servekit.errors import NotRunningError, RequestError, StartError
from servekit.system import docker, nvml, process, torchserve, worker_log, worker_reports
from servekit.system.worker_reports import WorkerReport
from servekit.verbs import canary

_POLL_S = 0.25
# Twice the same error is enough: TorchServe would go on for five minutes.
_SAME_FAILURES = 2
# A worker that dies without a traceback was killed (out of memory, a crash in native code).
_STARTS_WITHOUT_TRACEBACK = 3
_UNREGISTERED_S = 5.0
_TIMED_OUT = "did not respond in given time"


@dataclass(frozen=True)
class Row:
    """One worker in the table that ``up`` and ``status`` print. ``ready_s`` counts from the start of ``up``."""

    model: str
    version: str
    worker: str
    pid: int
    status: str
    gpu: str
    checked: str
    precision: str
    ready_s: float | None = None
    canary: str = ""


def wait(state: State, deployment: Deployment, started: float, progress: Callable[[str], None]) -> tuple[Row, ...]:
    """Rows of all workers once all are READY, are where the plan put them, and every model has answered."""
    deadline = started + deployment.server.startup_timeout_s + 60
    ready_at: dict[str, float] = {}
    missing_since: dict[str, float] = {}
    while len(ready_at) < len(deployment.models):
        now = time.monotonic()
        _stop_on_failure(state, started)
        for model in deployment.models:
            if model.name not in ready_at and _is_ready(state, model, missing_since):
                ready_at[model.name] = now - started
                progress(f"{model.name}: {model.workers} worker(s) READY after {now - started:.1f} s")
        if now > deadline:
            waiting = [model.name for model in deployment.models if model.name not in ready_at]
            raise StartError(
                f"Not ready after {now - started:.0f} s: {', '.join(waiting)}.",
                detail=_tail(Path(state.home)),
                hint="If loading takes that long, raise [server] startup_timeout_s.",
            )
        time.sleep(_POLL_S)
    answers = {model.name: canary.check(state, model) for model in deployment.models}
    table = rows(state, ready_s=ready_at, canaries=answers)
    _refuse_misplaced(table)
    return table


def rows(
    state: State, *, ready_s: Mapping[str, float] | None = None, canaries: Mapping[str, str] | None = None
) -> tuple[Row, ...]:
    """Every worker as server, worker and driver describe it now."""
    reports = worker_reports.read(Path(state.home))
    on_gpu = _gpu_of_pids(state.gpus) if state.runtime == "local" else {}
    table = []
    for model in state.models:
        info = torchserve.describe(state, model.name)
        for number, worker in enumerate(sorted(info.workers, key=lambda w: int(w.id)) if info else ()):
            report = reports.get((model.name, worker.pid))
            planned = state.gpus[number % len(state.gpus)] if state.gpus else None
            gpu, checked = _where(report, planned, on_gpu.get(worker.pid), state.gpus)
            table.append(
                Row(
                    model=model.name,
                    version=info.version if info else model.version,
                    worker=worker.id,
                    pid=worker.pid,
                    status=worker.status,
                    gpu=gpu,
                    checked=checked,
                    precision=report.precision if report else "-",
                    ready_s=(ready_s or {}).get(model.name),
                    canary=(canaries or {}).get(model.name, ""),
                )
            )
    return tuple(table)


def _is_ready(state: State, model: ServedModel, missing_since: dict[str, float]) -> bool:
    try:
        info = torchserve.describe(state, model.name, timeout_s=5)
    except (NotRunningError, RequestError):
        return False  # the frontend is not up yet; its death is noticed elsewhere
    if info is None:
        since = missing_since.setdefault(model.name, time.monotonic())
        if time.monotonic() - since > _UNREGISTERED_S:
            raise StartError(f"TorchServe did not register {model.name}.", detail=_tail(Path(state.home)))
        return False
    return info.ready >= model.workers


def _stop_on_failure(state: State, started: float) -> None:
    """Raise StartError as soon as the log or the process table says that waiting is in vain."""
    home = Path(state.home)
    failures = worker_log.failures(home / "logs" / "model.log")
    for (model, cause), count in Counter((f.model, f.cause) for f in failures).items():
        if count >= _SAME_FAILURES:
            last = next(f for f in reversed(failures) if (f.model, f.cause) == (model, cause))
            raise StartError(f"{model} cannot start: {cause}", detail=last.traceback, hint=_failure_hint(cause))
    if _TIMED_OUT in _read(home / "logs" / "server.log"):
        raise StartError(
            "A worker did not finish loading within its startup timeout, and TorchServe ended it.",
            detail=_tail(home),
            hint="If loading takes that long, raise [server] startup_timeout_s.",
        )
    failed = {f.model for f in failures}
    for (model, _worker), starts in worker_log.starts(home / "logs" / "model.log").items():
        if starts >= _STARTS_WITHOUT_TRACEBACK and model not in failed:
            raise StartError(
                f"{model}: a worker was started {starts} times and died without a Python traceback.",
                detail=_tail(home),
                hint="Often the kernel killed it for lack of memory (see dmesg), or native code crashed.",
            )
    running = docker.running(state.container) if state.container else bool(process.servers(home))
    if not running and time.monotonic() - started > 1.0:
        evidence = docker.logs_tail(state.container) if state.container else _tail(home)
        raise StartError(
            "TorchServe ended while it was starting.",
            detail=evidence,
            hint="If nothing above says why, somebody killed it; for lack of memory the kernel does (see dmesg).",
        )


def _failure_hint(cause: str) -> str:
    if cause.startswith(("ModuleNotFoundError", "ImportError")):
        return "Install it where the server runs, or put the file into the archive with --extra-file."
    return "Mend it, package again, and `servekit up` once more."


def _where(
    report: WorkerReport | None, planned: Gpu | None, seen: str | None, gpus: tuple[Gpu, ...]
) -> tuple[str, str]:
    """(GPU, how we know). Trust goes driver, then the worker itself, then the plan."""
    if seen is not None:
        gpu = next((g for g in gpus if g.uuid == seen), None)
        return (f"GPU {gpu.index}" if gpu else f"WRONG: {seen}"), "NVML"
    if report is not None and report.device.startswith("cuda:"):
        return f"GPU {gpus[int(report.device.removeprefix('cuda:'))].index}", "worker"
    if report is not None:
        return ("cpu" if planned is None else f"WRONG: {report.device}"), "worker"
    return ("cpu" if planned is None else f"GPU {planned.index}"), "plan"


def _refuse_misplaced(table: tuple[Row, ...]) -> None:
    wrong = [row for row in table if row.gpu.startswith("WRONG")]
    if wrong:
        listed = ", ".join(f"{row.model} (pid {row.pid}) on {row.gpu[7:]}" for row in wrong)
        raise StartError(f"Workers are not on the GPUs they were given: {listed}.")


def _gpu_of_pids(gpus: tuple[Gpu, ...]) -> dict[int, str]:
    """pid -> UUID of a GPU of the plan on which the driver sees it; empty where it gives no list."""
    return {found.pid: gpu.uuid for gpu in gpus for found in (nvml.processes(gpu.uuid) or ())}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _tail(home: Path, lines: int = 15) -> str:
    """The last words of the server, for a failure that left no Python traceback."""
    parts = []
    for name in ("console.log", "server.log", "model.log"):
        if text := _read(home / "logs" / name).strip():
            parts.append(f"--- {name}\n" + "\n".join(text.splitlines()[-lines:]))
    return "\n".join(parts)
