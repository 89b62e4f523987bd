"""``loadtest``: prove that the target answers, load it, and state what it delivered."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servekit.domain.deployment import State
from servekit.domain.gpu_load import gpu_loads
from servekit.domain.load import LoadProfile, Record, summarise
from servekit.domain.report import LoadReport
from servekit.domain.slo import judge, parse_slo
from servekit.errors import ConfigError, RequestError, StorageError
from servekit.render.report import report_html
from servekit.system import deployments, host, locust, media_type, nvml, torchserve, worker_reports
from servekit.system.gpu_sampler import GpuSampler


@dataclass(frozen=True)
class LoadRequest:
    """What the user said. Times in seconds; ``out`` None takes ``loadtest-<model>-<time>``."""

    model: str
    payload: Path
    name: str | None = None
    users: int = 8
    duration_s: float = 30.0
    warmup_s: float = 5.0
    slo: str | None = None
    out: Path | None = None
    command: str = ""


@dataclass(frozen=True)
class Tested:
    report: LoadReport
    folder: Path
    interrupted: bool
    replaced: bool
    """whether the folder held a report already"""
    unproven: str | None = None
    """what is to be said of a model that was started without a proof"""


def loadtest(root: Path, request: LoadRequest, progress: Callable[[float, Sequence[Record]], None]) -> Tested:
    """Run the test and write report.json and report.html. The SLO's verdicts are in the report."""
    clauses = parse_slo(request.slo) if request.slo is not None else ()
    payloads = _payloads(request.payload)
    state = deployments.find(root, request.name)
    unproven = deployments.served(state, request.model).unproven
    folder = _make_folder(root, request)
    first_ms = _first_answer(state, request.model, payloads[0])
    started = datetime.datetime.now(datetime.timezone.utc)
    job = locust.LoadJob(
        url=state.inference_url,
        path=f"/predictions/{request.model}",
        payloads=payloads,
        key_file=state.key_file if state.auth else None,
        users=request.users,
        duration_s=request.warmup_s + request.duration_s,
    )
    scratch = Path(tempfile.mkdtemp(prefix="servekit-loadtest-"))
    try:
        with GpuSampler([gpu.uuid for gpu in state.gpus]) as sampler:
            outcome = locust.run(job, scratch, progress)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    stats = summarise(outcome.records, request.warmup_s, outcome.end_s)
    samples = [dataclasses.replace(sample, t_s=sample.t_s - outcome.t0_s) for sample in sampler.samples]
    report = LoadReport(
        profile=LoadProfile(
            request.model, request.users, request.duration_s, request.warmup_s, len(payloads), request.slo
        ),
        stats=stats,
        gpus=gpu_loads(state.gpus, samples, request.warmup_s, outcome.end_s, stats.answered),
        gpu_note=_gpu_note(state, sampler.problem),
        verdicts=judge(clauses, stats.measured()),
        first_answer_ms=first_ms,
        started=started.isoformat(timespec="seconds"),
        elapsed_s=outcome.end_s,
        interrupted=outcome.interrupted,
        client_cpu_percent=outcome.client_cpu_percent,
        client_processes=outcome.processes,
        command=request.command,
        server=_server(state, request.model),
        host=host.identity() | _driver(state),
    )
    replaced = (folder / "report.html").exists()
    _write(folder, report)
    return Tested(report, folder, outcome.interrupted, replaced, unproven)


def _payloads(path: Path) -> tuple[locust.Payload, ...]:
    """One file, or every file of a folder, in the order of their names."""
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
        if not files:
            raise ConfigError(f"--payload: the folder {path} holds no file.")
    elif path.is_file():
        files = [path]
    else:
        raise ConfigError(f"--payload: {path} does not exist.", hint="Name a file, or a folder of files.")
    return tuple(locust.Payload(file.resolve(), media_type.of(file)) for file in files)


def _first_answer(state: State, model: str, payload: locust.Payload) -> float:
    """Milliseconds of one request before the load; RequestError in the server's words when it fails."""
    began = time.monotonic()
    answer = torchserve.predict(state, model, payload.file.read_bytes(), payload.content_type)
    if answer.status != 200:
        raise RequestError(
            f"{model} answers {payload.file.name} with HTTP {answer.status}: "
            f"{answer.body.decode('utf-8', 'replace').strip()[:500]}",
            hint="No load was sent. Mend the payload or the model first: servekit predict",
        )
    return (time.monotonic() - began) * 1000


def _make_folder(root: Path, request: LoadRequest) -> Path:
    """Made before the load, so that a test is not lost for want of a place to write."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = root / (request.out or f"loadtest-{request.model}-{stamp}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(
            f"--out: {folder} cannot be written: {error.strerror}.", hint="Name a folder that you may write to."
        ) from error
    return folder


def _gpu_note(state: State, problem: str | None) -> str | None:
    if not state.gpus:
        return "The deployment runs on the CPU: no GPU was measured."
    return f"GPU sampling ended early: {problem}" if problem else None


def _server(state: State, model: str) -> dict[str, str]:
    served = deployments.served(state, model)
    reports = [report for (name, _), report in worker_reports.read(Path(state.home)).items() if name == model]
    precisions = sorted({f"{report.precision} ({report.precision_reason})" for report in reports})
    return {
        "Deployment": f"{state.name} ({state.runtime}{', ' + state.image if state.image else ''})",
        "Address": state.inference_url,
        "Model": f"{served.name} {served.version}",
        "Archive SHA-256": served.sha256,
        "Proof": served.proof,
        "Workers": str(served.workers),
        "Batch size, at most": str(served.batch_size),
        "Precision": ", ".join(precisions) or "not reported by this handler",
        "Devices": ", ".join(sorted({report.device for report in reports})) or "not reported by this handler",
    }


def _driver(state: State) -> dict[str, str]:
    if not state.gpus:
        return {}
    gpus = ", ".join(f"{gpu} {gpu.uuid}" for gpu in state.gpus)
    return {"GPUs": gpus, "NVIDIA driver": nvml.driver_version() or "unknown"}


def _write(folder: Path, report: LoadReport) -> None:
    data: dict[str, Any] = report.to_dict()
    for name, text in (("report.json", json.dumps(data, indent=1) + "\n"), ("report.html", report_html(report))):
        temporary = folder / f".{name}.tmp"
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(folder / name)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StorageError(f"{folder / name}: {error.strerror}.") from error
