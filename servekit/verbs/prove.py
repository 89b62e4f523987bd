"""The steps of the proof that ``package``, ``verify`` and ``up`` share: ask the probe, judge, make a record."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servekit import __version__
from servekit.domain import proof
from servekit.domain.gpu import Gpu
from servekit.domain.proof import Batches, Device, Example, Record, Tolerance
from servekit.errors import GpuError, ModelError
from servekit.system import media_type, nvml, probe
from servekit.system.proofs import prove

Progress = Callable[[str], None]
UP_BUDGET_S = 60.0
# Beside fp32, what a CPU can compute; it tells early what a GPU will do, and must not take long.
_ON_CPU, _CPU_BUDGET_S = ("fp32", "bf16"), 120.0
_ON_GPU = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Subject:
    """An archive's files in ``stage``, and what its configuration says."""

    name: str
    stage: Path
    handler: str
    config: Mapping[str, Any]
    examples: tuple[str, ...]

    @property
    def wanted(self) -> str | None:
        """The configured precision; None for a handler that is not ours."""
        section = self.config.get("handler")
        return str(section.get("precision", "auto")) if isinstance(section, Mapping) else None

    @property
    def tolerance(self) -> dict[str, float]:
        said = (self.config.get("proof") or {}).get("tolerance") or {}
        return {**proof.TOLERANCE, "top1": proof.TOP1, **{key: float(value) for key, value in said.items()}}


def device(wanted: str | None, progress: Progress) -> Gpu | None:
    """The GPU to prove on; None is the CPU. ``wanted``: an index, ``none``, or None for the first that computes.

    Raises GpuError for one that was named and is not there.
    """
    gpus = nvml.inventory()
    if wanted in ("none", "cpu"):
        return None
    if wanted is not None:
        found = next((gpu for gpu in gpus if wanted in (str(gpu.index), gpu.uuid)), None)
        if found is None:
            there = ", ".join(map(str, gpus)) or "none"
            raise GpuError(f"--gpu {wanted}: there is no such GPU.", hint=f"There are: {there}. The CPU is `none`.")
        return found
    if not gpus:
        return None
    seen = probe.run("cuda", env=prove.environment(gpus[0]))
    if seen["error"]:
        progress(f"{gpus[0]} is left open: torch cannot compute on it ({seen['error']}). The proof is the CPU's.")
        return None
    return gpus[0]


def record(
    subject: Subject,
    gpu: Gpu | None,
    progress: Progress,
    *,
    budget_s: float | None = None,
    only_load: bool = False,
) -> Record:
    """Prove on ``gpu``. Raises ModelError when the archive does not load, answer, or keep its tolerance."""
    wanted = subject.wanted
    precisions = list(_ON_CPU if gpu is None else _ON_GPU) if wanted else []
    if wanted and wanted != "auto" and wanted not in precisions:
        precisions.append(wanted)
    if gpu is None and budget_s is None:
        budget_s = _CPU_BUDGET_S
    request = {
        "handler": subject.handler,
        "batch_size": int(subject.config.get("batchSize") or 1),
        "precisions": precisions,
        "tolerance": subject.tolerance,
        "examples": [{"file": file, "content_type": media_type.of(Path(file))} for file in subject.examples],
        "budget_s": budget_s,
        "load_only": only_load,
    }
    where = f"on {gpu}" if gpu else "on the CPU"
    try:
        result = prove.run(subject.stage, request, gpu, lambda line: progress(f"{subject.name}: proof {where}: {line}"))
    except ModelError as error:
        raise ModelError(f"{subject.name}: {error.message}", hint=error.hint, detail=error.detail) from error
    made = _record(subject, result, gpu)
    for warning in made.warnings:
        progress(f"{subject.name}: {warning}")
    return made


def _record(subject: Subject, result: Mapping[str, Any], gpu: Gpu | None) -> Record:
    wanted, tolerance = subject.wanted, subject.tolerance
    found = Device(**result["device"], driver=nvml.driver_version() if gpu else None)
    rows = tuple(proof.precision_from_dict(row) for row in result["precisions"])
    limits = Tolerance(tolerance, tolerance["top1"], result["top1_counts"])
    if wanted is None:
        choice = proof.Choice(None, "the handler decides: it is not one of servekit's")
    elif not rows:
        choice = proof.Choice(None, "nothing was asked of it")
    else:
        choice = proof.choose(wanted, rows, limits, found)
    if choice.problem:
        raise ModelError(
            f"{subject.name}: {choice.problem}",
            hint="Choose another --precision, leave layers alone with --keep-fp32 PATTERN, or allow more with "
            "--tolerance PRECISION=ERROR.",
        )
    return Record(
        device=found,
        versions={**result["versions"], "servekit": __version__, "numpy": importlib.metadata.version("numpy")},
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        wanted=wanted or "",
        chosen=choice.precision,
        reason=choice.reason,
        examples=tuple(Example(**example) for example in result["examples"]),
        batches=Batches(**{**result["batches"], "sizes": tuple(result["batches"].get("sizes", ()))}),
        precisions=rows,
        tolerance=dict(tolerance),
        load_s=result["load_s"],
        host_mib=result["host_mib"],
        parameters=result["parameters"],
        flops=result["flops"],
        trained=result["trained"],
        warnings=tuple(result["warnings"]),
    )
