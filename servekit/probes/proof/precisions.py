"""The error table: the same examples at every precision this device can compute."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from servekit.probes.proof import compare, cost, layers
from servekit.probes.proof.problem import said
from servekit.probes.proof.served import Answer, BatchFailedError, Request, Served

REFERENCE = "fp32"


def reference_row(served: Served, requests: Sequence[Request], batch_size: int, gpu: int | None) -> dict[str, Any]:
    """fp32 itself: no error, its time and memory."""
    return {"precision": REFERENCE, "load_s": served.load_s, "compared": "the reference"} | _cost(
        served, requests, batch_size, gpu
    )


def row(
    precision: str,
    requests: Sequence[Request],
    expected: Sequence[Answer],
    batch_size: int,
    gpu: int | None,
    tolerance: Mapping[str, float],
    captured: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Load at ``precision``, answer each example, compare with ``expected``; layers when it is beyond."""
    result: dict[str, Any] = {"precision": precision}
    try:
        served = Served(precision, gpu, batch_size, fallible=True)
    except Exception as error:
        return result | {"problem": str(error) if type(error).__name__ == "SetupError" else said(error)}
    judge = getattr(served.handler, "compare", None)
    differences = []
    for request, reference in zip(requests, expected, strict=True):
        try:
            answer = served.answer([request])[0]
        except BatchFailedError as error:
            return result | {"fault": f"the handler fails on {request.name}: {error}"}
        differences.append(compare.between(reference, answer, judge))
    max_rel, mean_rel, top1, fault, how = compare.together(differences)
    result |= {
        "max_rel": max_rel,
        "mean_rel": mean_rel,
        "top1": top1,
        "fault": fault,
        "compared": how,
        "load_s": served.load_s,
    }
    limit = tolerance[precision]
    if fault or (max_rel is not None and max_rel > limit):
        result["layers"] = layers.start_of_error(captured(), layers.capture(served, requests[:1]), limit)
    return result | _cost(served, requests, batch_size, gpu)


def _cost(served: Served, requests: Sequence[Request], batch_size: int, gpu: int | None) -> dict[str, Any]:
    if not served.ours:
        return {}
    return {
        "batch_ms": cost.batch_ms(served, requests, batch_size, gpu),
        "memory": cost.memory(served, requests, batch_size, gpu),
    }


def release(gpu: int | None) -> None:
    """Give back what the last model held before the next one is loaded."""
    gc.collect()
    if gpu is not None:
        import torch

        torch.cuda.empty_cache()
