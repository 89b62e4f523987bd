"""How far one answer is from another: arrays and the numbers of a JSON text, or the handler's own judgement."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servekit.probes.proof.served import Answer

_NPY = b"\x93NUMPY"


@dataclass(frozen=True)
class Difference:
    """Errors relative to the reference: ``max_rel`` = max|a-b| / max|a|, ``mean_rel`` = mean|a-b| / mean|a|,
    the worst of all arrays. ``top1``: the same best class, None where there is none. ``fault``: not the same
    structure, or NaN or infinity. ``how`` says what was compared; without numbers, why nothing could be."""

    max_rel: float | None = None
    mean_rel: float | None = None
    top1: bool | None = None
    fault: str | None = None
    how: str = ""


Comparer = Callable[[Any, Any], Any]


def between(reference: Answer, other: Answer, judge: Comparer | None) -> Difference:
    """``judge`` is the handler's own ``compare(a, b)``, asked first."""
    if reference.status != other.status:
        return Difference(fault=f"status {reference.status} became {other.status}: {_start(other.body)}")
    if reference.status >= 400:
        return Difference(how="not comparable: the example is refused")
    a, b = decoded(reference.body), decoded(other.body)
    if judge is not None:
        return _judged(judge, a, b)
    arrays: list[tuple[str, Any, Any]] = []
    if fault := _pair(a, b, "answer", arrays):
        return Difference(fault=fault)
    if not arrays:
        return Difference(how="not comparable: the answer holds no numbers, and the handler no compare(a, b)")
    return _worst(arrays, _classes(a, b))


def decoded(body: bytes) -> Any:
    """A .npy file as an array, JSON as its value, anything else as bytes."""
    try:
        return np.load(io.BytesIO(body), allow_pickle=False) if body.startswith(_NPY) else json.loads(body)
    except ValueError:
        return body


def together(differences: Sequence[Difference]) -> tuple[float | None, float | None, float | None, str | None, str]:
    """(worst max_rel, mean of mean_rel, share of equal top-1, first fault, how) over all examples."""
    maxima = [d.max_rel for d in differences if d.max_rel is not None]
    means = [d.mean_rel for d in differences if d.mean_rel is not None]
    best = [d.top1 for d in differences if d.top1 is not None]
    fault = next((d.fault for d in differences if d.fault), None)
    return (
        max(maxima) if maxima else None,
        math.fsum(means) / len(means) if means else None,
        sum(best) / len(best) if best else None,
        fault,
        next((d.how for d in differences if d.how), ""),
    )


def _judged(judge: Comparer, a: Any, b: Any) -> Difference:
    said = judge(a, b)
    values = said if isinstance(said, dict) else {"max_rel": said}
    max_rel, mean_rel, top1 = values.get("max_rel"), values.get("mean_rel"), values.get("top1")
    if max_rel is not None and not math.isfinite(float(max_rel)):
        return Difference(fault="the handler's compare(a, b) finds NaN or infinity")
    return Difference(
        None if max_rel is None else float(max_rel),
        None if mean_rel is None else float(mean_rel),
        None if top1 is None else bool(top1),
        how="by the handler's compare(a, b)",
    )


def _pair(a: Any, b: Any, path: str, arrays: list[tuple[str, Any, Any]]) -> str | None:
    """Collect arrays that belong together; say where the structures part."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return f"{path} has other keys: {sorted(a)[:5]} and {sorted(b)[:5]}"
        return next((f for key in a if (f := _pair(a[key], b[key], f"{path}.{key}", arrays))), None)
    if _numeric(a) and _numeric(b):
        left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
        if left.shape != right.shape:
            return f"{path} has shape {list(left.shape)} and {list(right.shape)}"
        if np.isfinite(left).all() and not np.isfinite(right).all():
            return f"{path} holds NaN or infinity"
        if left.size:
            arrays.append((path, left, right))
        return None
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"{path} has {len(a)} and {len(b)} entries"
        pairs = enumerate(zip(a, b, strict=True))
        return next((f for i, (x, y) in pairs if (f := _pair(x, y, f"{path}[{i}]", arrays))), None)
    return None if type(a) is type(b) and _same(a, b) else f"{path}: {_shown(a)} became {_shown(b)}"


def _same(a: Any, b: Any) -> bool:
    return bool(a == b)


def _numeric(value: Any) -> bool:
    """A number, an array, or lists of numbers that make one."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    if isinstance(value, bool):
        return False
    if isinstance(value, (int, float)):
        return True
    if not isinstance(value, list) or not value:
        return False
    if not all(map(_numeric, value)):
        return False
    return len({np.shape(v) for v in value}) == 1 if isinstance(value[0], list) else True


def _worst(arrays: list[tuple[str, Any, Any]], top1: bool | None) -> Difference:
    max_rel = mean_rel = 0.0
    for _, a, b in arrays:
        finite = np.isfinite(a) & np.isfinite(b)
        gap, size = np.abs(a - b)[finite], np.abs(a)[finite]
        if gap.size:
            max_rel = max(max_rel, float(gap.max() / (size.max() or 1.0)))
            mean_rel = max(mean_rel, float(gap.mean() / (size.mean() or 1.0)))
    count = sum(a.size for _, a, _ in arrays)
    return Difference(max_rel, mean_rel, top1, how=f"{count} numbers an answer")


def _classes(a: Any, b: Any) -> bool | None:
    """Whether the largest of one flat vector is at the same place; None for any other kind of answer."""
    if not (_numeric(a) and np.ndim(a) == 1 and np.size(a) > 1):
        return None
    return int(np.argmax(a)) == int(np.argmax(b))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _start(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())[:200]
