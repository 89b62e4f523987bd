"""Which precision `up` gives a model: by its proof, measured now, or by capability - and what it says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nouns import gpu, served

from servekit.domain.gpu import GpuPlan
from servekit.domain.proof import Device, Proof, Record
from servekit.system.archives.archive import ArchiveInfo
from servekit.system.proofs import proof_file
from servekit.verbs import precision, prove, verify

H200, L4 = gpu(0, "NVIDIA H200"), gpu(1, "NVIDIA L4")
TORCH = "9.9.9"


def record(name: str, chosen: str | None, torch: str = TORCH) -> Record:
    return Record(Device("cuda", name), {"torch": torch}, "2026", "auto", chosen, f"measured on {name}")


@pytest.fixture
def info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveInfo:
    monkeypatch.setattr(precision.importlib.metadata, "version", lambda _: TORCH)
    config = {"handler": {"schema": 2, "kind": "tensor", "precision": "auto"}}
    path = tmp_path / "store" / "m.mar"
    path.parent.mkdir()
    return ArchiveInfo(path, "a" * 64, 1, "m", "1.0", {"model": {"handler": "h.py"}}, config, (), {}, "mar", {})


def decide(
    info: ArchiveInfo, plan: GpuPlan, root: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[Any, str, list[Any]]:
    """(the model, all notes, the GPUs that were measured)."""
    measured: list[Any] = []

    def measure(subject: ArchiveInfo, root: Path, gpu: Any, progress: Any, budget_s: float) -> Record:
        assert budget_s == prove.UP_BUDGET_S == 60.0
        measured.append(gpu)
        return record(gpu.name, "fp16")

    monkeypatch.setattr(verify, "measure", measure)
    model = replace(served("m"), config=info.config)
    how = {"runtime": "local", "calibrate": True, "act": True, "signed": False, **changes}
    models, notes = precision.decide([model], [info], plan, root, progress=lambda _: None, **how)
    return models[0], "\n".join(notes), measured


def write(info: ArchiveInfo, *records: Record) -> None:
    proof_file.write(proof_file.path_of(info.path), Proof("m", "1.0", info.sha256, records))


def test_the_record_of_this_gpu_is_used(info: ArchiveInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(info, record("NVIDIA H200", "bf16"), record("NVIDIA L4", "fp32"))
    model, notes, measured = decide(info, GpuPlan((H200,)), tmp_path, monkeypatch)
    assert (model.precision, model.precision_reason, measured) == ("bf16", "measured on NVIDIA H200", [])
    assert notes == "m: precision bf16 (measured on NVIDIA H200)."


def test_of_different_gpus_the_most_exact(info: ArchiveInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(info, record("NVIDIA H200", "fp16"), record("NVIDIA L4", "tf32"))
    assert decide(info, GpuPlan((H200, L4)), tmp_path, monkeypatch)[0].precision == "tf32"


@pytest.mark.parametrize("known", [(), (("NVIDIA L4", TORCH),), (("NVIDIA H200", "1.0"),)])
def test_without_a_record_it_is_measured_once_and_kept(
    info: ArchiveInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: tuple[tuple[str, str], ...]
) -> None:
    if known:
        write(info, *(record(name, "bf16", torch) for name, torch in known))
    model, notes, measured = decide(info, GpuPlan((H200, replace(H200, index=1))), tmp_path, monkeypatch)
    assert (model.precision, measured) == ("fp16", [H200])
    assert ("not proven" in notes) == (not known)
    again, _, measured = decide(info, GpuPlan((H200,)), tmp_path, monkeypatch)
    assert (again.precision, measured) == ("fp16", [])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"calibrate": False}, "none is made (--no-calibrate)"),
        ({"act": False}, "`up` would measure it first (at most 60 s)"),
        ({"runtime": "docker"}, "auto goes by its compute capability"),
    ],
)
def test_what_keeps_it_from_being_measured_is_said(
    info: ArchiveInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: str
) -> None:
    model, notes, measured = decide(info, GpuPlan((H200,)), tmp_path, monkeypatch, **changes)
    assert (model.precision, measured) == (None, [])
    assert told in notes
    assert "m: not proven" in notes


def test_with_a_signature_the_new_record_stays_apart(
    info: ArchiveInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(info, GpuPlan((H200,)), tmp_path, monkeypatch, signed=True)
    assert not proof_file.path_of(info.path).exists()
    assert decide(info, GpuPlan((H200,)), tmp_path, monkeypatch, signed=True)[0].precision == "fp16"


def test_a_fixed_precision_is_left_alone(info: ArchiveInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(info, record("NVIDIA H200", "fp16"))
    fixed = replace(info, config={"handler": {"schema": 2, "precision": "fp32"}})
    assert decide(fixed, GpuPlan((H200,)), tmp_path, monkeypatch)[0].precision is None


def test_on_a_cpu_nothing_is_measured(info: ArchiveInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(info, record("NVIDIA H200", "fp16"))
    model, notes, measured = decide(info, GpuPlan(), tmp_path, monkeypatch)
    assert (model.precision, measured) == (None, [])
    assert notes == "m: proven on NVIDIA H200, not on this CPU with this torch."


def test_the_proof_of_another_archive_does_not_count(
    info: ArchiveInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Proof("m", "1.0", "b" * 64, (record("NVIDIA H200", "bf16"),))
    proof_file.write(proof_file.path_of(info.path), other)
    model, notes, _ = decide(info, GpuPlan((H200,)), tmp_path, monkeypatch, calibrate=False)
    assert model.precision is None
    assert "m.proof.json is the proof of another archive (bbbbbbbbbbbb, not aaaaaaaaaaaa)." in notes
