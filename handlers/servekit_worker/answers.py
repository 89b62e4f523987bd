"""How far two lists of predictions are from each other, class by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def by_class(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Scores matched by class. A class that only one side shows had at most the other side's lowest score there."""
    left, right = ({entry["index"]: entry["score"] for entry in side} for side in (a, b))
    lowest_left, lowest_right = min(left.values(), default=0.0), min(right.values(), default=0.0)
    gaps = []
    for index in left.keys() | right.keys():
        if index in left and index in right:
            gaps.append(abs(left[index] - right[index]))
        elif index in left:
            gaps.append(max(0.0, left[index] - lowest_right))
        else:
            gaps.append(max(0.0, right[index] - lowest_left))
    largest = max((abs(score) for score in left.values()), default=0.0) or 1.0
    mean = sum(map(abs, left.values())) / max(1, len(left)) or 1.0
    return {
        "max_rel": max(gaps, default=0.0) / largest,
        "mean_rel": sum(gaps) / max(1, len(gaps)) / mean,
        "top1": bool(a and b) and a[0]["index"] == b[0]["index"],
    }
