"""Which precision each model gets on the GPUs at hand: by its proof, else measured now, else by capability."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from servekit.domain.deployment import ServedModel
from servekit.domain.gpu import Gpu, GpuPlan
from servekit.domain.proof import Record
from servekit.system.archives.archive import ArchiveInfo
from servekit.system.proofs import proof_file
from servekit.verbs import prove, verify

Progress = Callable[[str], None]
_EXACT_FIRST = ("fp32", "tf32", "bf16", "fp16")


def decide(
    models: Sequence[ServedModel],
    infos: Sequence[ArchiveInfo],
    gpus: GpuPlan,
    root: Path,
    *,
    runtime: str,
    calibrate: bool,
    act: bool,
    signed: bool,
    progress: Progress,
) -> tuple[tuple[ServedModel, ...], tuple[str, ...]]:
    """Every model with its precision, and what is to be said.

    ``act`` False (a dry run) measures nothing. ``signed``: only what the signature covers counts, so that a new
    record goes to the project's folder and not beside the archive. Raises ModelError when a model leaves its tolerance.
    """
    decided: list[ServedModel] = []
    notes: list[str] = []
    for model, info in zip(models, infos, strict=True):
        found, note = proof_file.known(info.path, info.sha256, root)
        if note:
            notes.append(f"{info.name}: {note}")
        if found is None:
            notes.append(f"{info.name}: not proven: no record of it anywhere; make one: servekit verify {info.name}")
        model = replace(model, proof=found.standing() if found else "not proven")
        if not gpus.count:
            decided.append(model)
            if found and not found.on("cpu", None, _torch(runtime)):
                notes.append(f"{info.name}: {found.standing()}, not on this CPU with this torch.")
            continue
        records: list[Record | None] = []
        for gpu in _one_of_each(gpus.gpus):
            record = found.on("cuda", gpu.name, _torch(runtime)) if found else None
            if record is None:
                record = _measure(info, gpu, root, runtime, calibrate, act, signed, progress, notes)
            records.append(record)
        decided.append(_with(model, [record for record in records if record], len(records), notes))
    return tuple(decided), tuple(notes)


def _measure(
    info: ArchiveInfo,
    gpu: Gpu,
    root: Path,
    runtime: str,
    calibrate: bool,
    act: bool,
    signed: bool,
    progress: Progress,
    notes: list[str],
) -> Record | None:
    where = f"{info.name}: no record on {gpu.name}"
    section = info.config.get("handler")
    if not isinstance(section, dict):
        notes.append(f"{where}: its handler is not servekit's and decides by itself.")
        return None
    if not calibrate:
        notes.append(f"{where}, and none is made (--no-calibrate): auto goes by the GPU's compute capability.")
        return None
    if runtime != "local":
        notes.append(f"{where}: auto goes by its compute capability. Measure it where torch is: servekit verify")
        return None
    if not act:
        notes.append(f"{where}: `up` would measure it first (at most {prove.UP_BUDGET_S:.0f} s).")
        return None
    progress(f"{where}: measuring it now (at most {prove.UP_BUDGET_S:.0f} s; --no-calibrate skips it) ...")
    record = verify.measure(info, root, gpu, progress, prove.UP_BUDGET_S)
    path, _ = verify.save(info, root, record, progress, beside=not signed)
    progress(f"{info.name}: {record.reason}; recorded in {path.name}.")
    return record


def _with(model: ServedModel, records: list[Record], kinds: int, notes: list[str]) -> ServedModel:
    """One configuration serves all workers: of different GPU models' choices, the most exact."""
    section = model.config.get("handler")
    if not isinstance(section, dict) or section.get("precision", "auto") != "auto" or len(records) < kinds:
        return model
    chosen = [record for record in records if record.chosen]
    if not chosen:
        return model
    best = min(chosen, key=lambda record: _EXACT_FIRST.index(str(record.chosen)))
    notes.append(f"{model.name}: precision {best.chosen} ({best.reason}).")
    return replace(model, precision=best.chosen, precision_reason=best.reason)


def _one_of_each(gpus: Sequence[Gpu]) -> list[Gpu]:
    return list({gpu.name: gpu for gpu in reversed(gpus)}.values())[::-1]


def _torch(runtime: str) -> str | None:
    """The torch that will serve; None where only the image knows."""
    return importlib.metadata.version("torch") if runtime == "local" else None
