"""How far one answer is from another."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from servekit.probes.proof.compare import Difference, between, decoded, together
from servekit.probes.proof.served import Answer


def answer(value: Any, status: int = 200) -> Answer:
    return Answer(status, None, value if isinstance(value, bytes) else json.dumps(value).encode())


def npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(value))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("a", "b", "max_rel", "mean_rel", "top1"),
    [
        ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], 0.0, 0.0, True),
        ([1.0, 2.0, 4.0], [1.0, 2.2, 4.0], 0.05, 0.2 / 7, True),
        ([1.0, 4.0], [4.0, 1.0], 0.75, 0.6 * 2, False),
        ([[1, 2], [3, 4]], [[1, 2], [3, 5]], 0.25, 0.1, None),
        (2.0, 1.0, 0.5, 0.5, None),
        ([0.0, 0.0], [0.5, 0.0], 0.5, 0.25, True),
        ({"a": [1.0], "b": "x"}, {"a": [0.5], "b": "x"}, 0.5, 0.5, None),
        ({"a": 1.0, "b": 10.0}, {"a": 0.9, "b": 10.0}, 0.1, 0.1, None),
    ],
)
def test_numbers(a: Any, b: Any, max_rel: float, mean_rel: float, top1: bool | None) -> None:
    found = between(answer(a), answer(b), None)
    assert found.fault is None
    assert found.max_rel == pytest.approx(max_rel)
    assert found.mean_rel == pytest.approx(mean_rel)
    assert found.top1 is top1


def test_arrays() -> None:
    found = between(answer(npy([1.0, 2.0])), answer(npy([1.0, 1.5])), None)
    assert (found.max_rel, found.top1) == (0.25, True)


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        ([1.0, 2.0], [1.0], "shape [2] and [1]"),
        ({"a": 1}, {"b": 1}, "other keys"),
        ({"l": "cat", "s": 0.5}, {"l": "dog", "s": 0.5}, "answer.l: 'cat' became 'dog'"),
        ([{"x": 1}], [{"x": 1}, {"x": 2}], "1 and 2 entries"),
        ([1.0, 2.0], [1.0, float("nan")], "NaN or infinity"),
        ([1.0], "text", "became 'text'"),
        ([1.0, None], [1.0, 2.0], "became 2.0"),
        (npy([1.0]), [1.0, 2.0], "shape [1] and [2]"),
    ],
)
def test_other_structures(a: Any, b: Any, told: str) -> None:
    found = between(answer(a), answer(b), None)
    assert found.fault and told in found.fault
    assert found.max_rel is None


@pytest.mark.parametrize("same", [b"\x00\x01", b'{"label": "cat"}'])
def test_no_numbers_are_not_comparable(same: bytes) -> None:
    found = between(answer(same), answer(same), None)
    assert (found.max_rel, found.fault) == (None, None)
    assert "not comparable" in found.how


def test_another_status_is_a_fault() -> None:
    found = between(answer([1.0]), answer({"message": "out of memory"}, 507), None)
    assert found.fault and found.fault.startswith("status 200 became 507: ")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"max_rel": 0.1, "mean_rel": 0.01, "top1": True}, (0.1, 0.01, True, None)),
        (0.25, (0.25, None, None, None)),
        ({"max_rel": float("inf")}, (None, None, None, "the handler's compare(a, b) finds NaN or infinity")),
    ],
)
def test_the_handlers_own_judgement_comes_first(said: Any, expected: tuple[Any, ...]) -> None:
    found = between(answer({"label": "a"}), answer({"label": "b"}), lambda a, b: said)
    assert (found.max_rel, found.mean_rel, found.top1, found.fault) == expected


def test_together() -> None:
    told = together([Difference(0.1, 0.01, True, how="x"), Difference(0.3, 0.03, False), Difference(fault="f")])
    assert told == (0.3, pytest.approx(0.02), 0.5, "f", "x")
    assert together([]) == (None, None, None, None, "")


def test_numpys_pickles_are_not_read() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([object()], dtype=object), allow_pickle=True)
    assert decoded(buffer.getvalue()) == buffer.getvalue()
