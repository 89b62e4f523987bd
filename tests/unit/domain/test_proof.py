"""What a record means: which precision serves, and which record belongs to which device."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from servekit.domain import proof
from servekit.domain.proof import (
    Batches,
    Device,
    Example,
    Memory,
    PrecisionResult,
    Proof,
    Record,
    Tolerance,
    choose,
)

H200 = Device("cuda", "NVIDIA H200", "9.0", 143771, "580.1")
CPU = Device("cpu", "AMD EPYC, 2 cores")
FP32 = PrecisionResult("fp32", batch_ms=10.0)
TF32 = PrecisionResult("tf32", 1e-3, 1e-4, 1.0, 5.0)
BF16 = PrecisionResult("bf16", 1e-2, 1e-3, 1.0, 3.0)
FP16 = PrecisionResult("fp16", 1e-3, 1e-4, 1.0, 2.0)
ALL = (FP32, TF32, BF16, FP16)


def test_auto_takes_the_fastest_that_passes() -> None:
    choice = choose("auto", ALL, Tolerance(), H200)
    assert (choice.precision, choice.problem) == ("fp16", None)
    assert choice.reason == "auto: measured on NVIDIA H200: 2.00 ms a batch, 5.00 x fp32, error 1.0e-03, top-1 100.0%"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (replace(FP16, max_rel=5.1e-3), "bf16"),
        (replace(FP16, max_rel=5e-3), "fp16"),
        (replace(FP16, max_rel=float("nan")), "bf16"),
        (replace(FP16, top1=0.99), "bf16"),
        (replace(FP16, top1=None), "fp16"),
        (replace(FP16, fault="answer holds NaN or infinity"), "bf16"),
        (replace(FP16, problem="not measured within 60 s"), "bf16"),
        (replace(FP16, max_rel=None, compared="not comparable"), "fp16"),
        (replace(FP16, batch_ms=2.95), "bf16"),
        (replace(FP16, batch_ms=None), "bf16"),
        (replace(FP16, batch_ms=20.0), "bf16"),
    ],
)
def test_what_keeps_a_precision_from_being_chosen(changed: PrecisionResult, expected: str) -> None:
    assert choose("auto", (*ALL[:3], changed), Tolerance(), H200).precision == expected


def test_equally_fast_the_more_exact_wins() -> None:
    rows = tuple(replace(row, batch_ms=3.0) for row in ALL)
    assert choose("auto", rows, Tolerance(), H200).precision == "fp32"


def test_auto_on_a_cpu_is_fp32_however_fast_bf16_is() -> None:
    assert choose("auto", (FP32, BF16), Tolerance(), CPU) == proof.Choice("fp32", "auto: the CPU")


def test_a_fixed_precision_beyond_its_tolerance_is_a_problem_with_its_layers() -> None:
    bad = replace(FP16, max_rel=0.3, layers=("head.0 (2.1e-01)", "head.2 (3.0e-01)"))
    choice = choose("fp16", (FP32, TF32, BF16, bad), Tolerance(), H200)
    assert choice.precision is None
    assert choice.problem == (
        "at fp16 the answers leave the tolerance: largest relative error 0.3, allowed 0.005. "
        "It starts at: head.0 (2.1e-01); head.2 (3.0e-01). fp32, tf32, bf16 would pass."
    )


def test_a_fixed_precision_that_the_device_lacks_stays_open() -> None:
    row = PrecisionResult("fp16", problem="precision fp16 needs an NVIDIA GPU")
    choice = choose("fp16", (FP32, row), Tolerance(), CPU)
    assert (choice.precision, choice.problem) == (None, None)
    assert choice.reason == "fp16 is open on CPU (AMD EPYC, 2 cores): precision fp16 needs an NVIDIA GPU"


def test_a_limit_of_ones_own_and_classes_that_mean_nothing() -> None:
    loose = Tolerance({"fp16": 0.5}, top1=0.5)
    assert choose("fp16", (FP32, replace(FP16, max_rel=0.4, top1=0.6)), loose, H200).precision == "fp16"
    untrained = Tolerance(top1_counts=False)
    assert choose("fp16", (FP32, replace(FP16, top1=0.1)), untrained, H200).precision == "fp16"


RECORD = Record(
    device=H200,
    versions={"torch": "2.13.0+cu130", "cuda": "13.0"},
    created="2026-12-01T10:00:00+00:00",
    wanted="auto",
    chosen="bf16",
    reason="auto: measured",
    examples=(Example("example/a.png", 200, "application/json", {"predictions": []}, "0" * 64),),
    batches=Batches((1, 2, 8), 1e-7, "fails alone"),
    precisions=(replace(BF16, memory=(Memory(8, 97.7, 210.5, 512.0),), layers=("a (1e-1)",)), FP32),
    tolerance={"bf16": 0.02},
    warnings=("w",),
)
PROOF = Proof("m", "1.0", "f" * 64, (RECORD,))


def test_a_proof_survives_its_file() -> None:
    assert proof.from_dict(json.loads(json.dumps(proof.to_dict(PROOF)))) == PROOF


def test_a_new_record_replaces_the_one_of_the_same_place() -> None:
    again = replace(RECORD, chosen="fp16", created="2026-12-02T10:00:00+00:00")
    assert PROOF.with_record(again).records == (again,)
    newer_torch = replace(RECORD, versions={"torch": "2.14.0"})
    assert PROOF.with_record(newer_torch).records == (RECORD, newer_torch)


def test_which_record_counts_here() -> None:
    cpu = replace(RECORD, device=CPU)
    both = PROOF.with_record(cpu)
    assert both.on("cuda", "NVIDIA H200", "2.13.0+cu130") is RECORD
    assert both.on("cuda", "NVIDIA H200", None) is RECORD
    assert both.on("cuda", "NVIDIA L4", None) is None
    assert both.on("cuda", "NVIDIA H200", "2.14.0") is None
    assert both.on("cpu", "another CPU", None) is cpu


def test_the_standing() -> None:
    assert PROOF.standing() == "proven on NVIDIA H200"
    assert replace(PROOF, records=()).standing() == "not proven"


def damaged(**changes: Any) -> dict[str, Any]:
    return proof.to_dict(PROOF) | changes


@pytest.mark.parametrize(
    "data",
    [
        {},
        damaged(schema=2),
        damaged(archive={}),
        damaged(records=[{}]),
        damaged(records=[proof.to_dict(PROOF)["records"][0] | {"surplus": 1}]),
    ],
)
def test_what_is_no_proof(data: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        proof.from_dict(data)
