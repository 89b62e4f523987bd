"""The order of the proof. The request, as JSON on stdin::

    {"handler": str, "batch_size": int, "precisions": [str], "gpu": 0 | null, "tolerance": {precision: float},
     "examples": [{"file": str, "content_type": str}], "budget_s": float | null, "result": path,
     "load_only": bool}

The result file::

    {"problem": str | null, "hint": str, "detail": str, "versions": {...}, "device": {...} | null,
     "examples": [...], "batches": {...}, "precisions": [...], "load_s", "host_mib", "parameters", "flops",
     "trained": str, "top1_counts": bool, "warnings": [...]}
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servekit.probes.proof import (
    PROGRESS,
    batches,
    compare,
    cost,
    handler_file,
    inputs,
    layers,
    model_facts,
    precisions,
)
from servekit.probes.proof.problem import ProofError, own_frames, said
from servekit.probes.proof.served import Answer, Request, Served, quiet, section

_MAX_ANSWER = 64 * 1024


def main() -> None:
    request = json.load(sys.stdin)
    result: dict[str, Any] = {"problem": None, "detail": "", "hint": ""}
    with quiet():
        try:
            result |= prove(request)
        except ProofError as problem:
            result |= {"problem": problem.message, "hint": problem.hint, "detail": problem.detail}
        except Exception as error:
            # Nothing of ours: the user's code, torch or TorchServe went another way than any seen before.
            result |= {"problem": f"the proof could not go on: {said(error)}", "detail": own_frames(error)}
    partial = Path(request["result"] + ".partial")
    partial.write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    partial.replace(request["result"])


def prove(request: Mapping[str, Any]) -> dict[str, Any]:
    gpu, batch_size = request["gpu"], request["batch_size"]
    deadline = None if request["budget_s"] is None else time.monotonic() + request["budget_s"]
    handler_file.check(request["handler"])
    options = section()
    progress("loading at fp32" if options else "loading")
    served = Served(precisions.REFERENCE if options else None, gpu, batch_size)
    result: dict[str, Any] = {
        "versions": _versions(),
        "device": _device(gpu),
        "load_s": served.load_s,
        "parameters": model_facts.parameters(served),
        "warnings": [],
        "precisions": [],
        "examples": [],
        "batches": {},
        "trained": "",
        "top1_counts": model_facts.has_classes(options, served),
        "flops": None,
        "host_mib": cost.host_mib(),
    }
    asked = inputs.requests(request["examples"], options)
    if request["load_only"]:
        return result
    if not asked:
        result["warnings"].append("there is no example (--example): it was loaded, but nothing was asked of it.")
        return result
    progress(f"asking alone, in pairs and in batches of {batch_size}")
    seen = batches.check(served, asked, batch_size, request["tolerance"][precisions.REFERENCE])
    result["batches"] = {"sizes": seen.sizes, "max_rel": seen.max_rel, "malformed": seen.malformed}
    result["warnings"] += seen.warnings
    result["examples"] = [_example(r, a) for r, a in zip(asked, seen.singles, strict=True)]
    result["host_mib"] = cost.host_mib()
    if not (served.ours and options):
        return result
    model_facts.check_labels(served, options, asked)
    result["trained"] = model_facts.untrained(served)
    result["top1_counts"] = result["top1_counts"] and not result["trained"]
    result["flops"] = model_facts.flops(served, asked[0])
    rows = _table(served, request, asked, seen.singles, deadline)
    if not result["top1_counts"]:  # the largest of some numbers is no class, and of random ones it means nothing
        rows = [{**row, "top1": None} for row in rows]
    return result | {"precisions": rows}


def _table(
    served: Served, request: Mapping[str, Any], asked: Sequence[Request], expected: list[Answer], deadline: float | None
) -> list[dict[str, Any]]:
    gpu, batch_size = request["gpu"], request["batch_size"]
    progress("fp32: time and memory")
    rows = [precisions.reference_row(served, asked, batch_size, gpu)]
    known: list[dict[str, Any]] = []

    def captured() -> dict[str, Any]:
        if not known:
            known.append(layers.capture(Served(precisions.REFERENCE, gpu, batch_size), asked[:1]))
        return known[0]

    del served
    for precision in request["precisions"]:
        if precision == precisions.REFERENCE:
            continue
        precisions.release(gpu)
        if deadline is not None and time.monotonic() > deadline:
            rows.append({"precision": precision, "problem": f"not measured within {request['budget_s']:g} s"})
            continue
        progress(f"{precision}: errors, time and memory")
        rows.append(precisions.row(precision, asked, expected, batch_size, gpu, request["tolerance"], captured))
    return rows


def progress(message: str) -> None:
    print(f"{PROGRESS}{message}", file=sys.stderr, flush=True)


def _example(request: Request, answer: Answer) -> dict[str, Any]:
    value = compare.decoded(answer.body)
    keep = len(answer.body) <= _MAX_ANSWER and _is_json(value)
    return {
        "file": request.name,
        "status": answer.status,
        "content_type": answer.content_type,
        "answer": value if keep else None,
        "sha256": hashlib.sha256(answer.body).hexdigest(),
    }


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _versions() -> dict[str, str | None]:
    import torch
    import ts

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "torchserve": ts.__version__,
    }


def _device(gpu: int | None) -> dict[str, Any]:
    if gpu is None:
        return {"kind": "cpu", "name": _cpu(), "capability": None, "memory_mib": None}
    import torch

    properties = torch.cuda.get_device_properties(gpu)
    return {
        "kind": "cuda",
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_mib": properties.total_memory // (1024 * 1024),
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {len(os.sched_getaffinity(0))} cores"
    except OSError:
        pass
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
