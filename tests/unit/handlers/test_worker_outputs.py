from __future__ import annotations

import json
from collections import namedtuple

import numpy as np
import pytest
import torch

from servekit_worker.errors import ItemError
from servekit_worker.outputs import split, to_json

Pair = namedtuple("Pair", ["a", "b"])


def test_structures_are_cut_item_by_item() -> None:
    a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([3, 4])
    assert [to_json(item) for item in split(a)] == ["[1.0]", "[2.0]"]
    assert [to_json(item) for item in split((a, b))] == ["[[1.0], 3]", "[[2.0], 4]"]
    assert [to_json(item) for item in split(Pair(a, None))] == ["[[1.0], null]", "[[2.0], null]"]
    assert [to_json(item) for item in split({"x": a, "y": [b]})] == [
        '{"x": [1.0], "y": [3]}',
        '{"x": [2.0], "y": [4]}',
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_floats_become_fp32(dtype: torch.dtype) -> None:
    assert split(torch.tensor([0.5], dtype=dtype))[0].dtype == torch.float32


def test_float64_keeps_its_digits() -> None:
    assert json.loads(to_json(split(torch.tensor([0.1], dtype=torch.float64))[0])) == 0.1


def test_outputs_without_a_batch_axis_are_refused() -> None:
    for outputs in (torch.tensor(1.0), (torch.ones(2), torch.ones(3))):
        with pytest.raises(ValueError, match="first axis"):
            split(outputs)
    for nothing in ("text", None, (torch.ones(1), "text")):
        with pytest.raises(TypeError, match="override postprocess"):
            split(nothing)


@pytest.mark.parametrize("value", [float("nan"), torch.tensor([1.0, float("inf")]), {"a": np.float32("nan")}])
def test_nan_is_not_json(value: object) -> None:
    with pytest.raises(ItemError, match="NaN or infinity") as caught:
        to_json(value)
    assert caught.value.status == 500


def test_numpy_values_are_json_and_others_are_the_handlers_fault() -> None:
    assert to_json({"a": np.int64(3), "b": np.ones(2)}) == '{"a": 3, "b": [1.0, 1.0]}'
    with pytest.raises(TypeError, match="an answer holds set"):
        to_json({1, 2})


def test_an_error_has_torchserves_form() -> None:
    assert ItemError(400, "why").body() == {"code": 400, "type": "BadRequestException", "message": "why"}
    assert ItemError(500, "why").body()["type"] == "PredictionException"
