from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from servekit_worker import tensors
from servekit_worker.errors import ItemError


def npy(array: np.ndarray, **how: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **how)
    return buffer.getvalue()


def refused(body: Any, dtype: str = "float32", shape: tuple[int, ...] | None = None) -> ItemError:
    with pytest.raises(ItemError) as caught:
        tensors.decode(body, dtype, shape)
    return caught.value


@pytest.mark.parametrize("body", [[[1, 2.5]], b"[[1, 2.5]]", bytearray(b" [[1,2.5]]"), "[[1, 2.5]]"])
def test_json_parsed_or_not(body: Any) -> None:
    assert torch.equal(tensors.decode(body, "float32", (1, 2)), torch.tensor([[1.0, 2.5]]))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float64).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6, dtype=">f4").reshape(2, 3),
    ],
)
def test_npy(array: np.ndarray) -> None:
    tensor = tensors.decode(npy(array), "float32", (2, 3))
    assert torch.equal(tensor, torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))


def test_one_number_is_an_item_of_no_axes() -> None:
    assert tensors.decode(3, "int64", ()).item() == 3


@pytest.mark.parametrize(
    ("body", "dtype", "status", "told"),
    [
        (b"hello", "float32", 415, "neither JSON nor"),
        (b"\xff\xfe\x00", "float32", 415, "neither JSON nor"),
        (b"[" * 100_000, "float32", 415, "neither JSON nor"),
        ({"a": [1]}, "float32", 400, "got dict"),
        (None, "float32", 400, "got NoneType"),
        ([[1], [1, 2]], "float32", 400, "ragged"),
        (["NaN"], "float32", 400, "not a number"),
        ([None, 1.0], "float32", 400, "not a number"),
        ([10**400], "float32", 400, "not a number"),
        ([], "float32", 400, "empty"),
        (b"[NaN]", "float32", 400, "NaN"),
        (b"[1e999]", "float64", 400, "infinity"),
        ([1e39], "float32", 400, "too large for float32"),
        ([70000.0], "float16", 400, "too large for float16"),
        ([1.5], "int64", 400, "whole numbers"),
        ([256], "uint8", 400, "from 0 to 255"),
        ([-1], "uint8", 400, "from 0 to 255"),
        ([2], "bool", 400, "from 0 to 1"),
    ],
)
def test_bad_json_is_the_clients_error(body: Any, dtype: str, status: int, told: str) -> None:
    error = refused(body, dtype)
    assert error.status == status
    assert told in error.message


def test_a_wrong_shape_names_both() -> None:
    assert refused([1, 2], shape=(3,)).message == "the input has shape [2]; this model takes [3]."


def test_whole_numbers_that_fit_are_cast() -> None:
    assert tensors.decode([0, 255], "uint8", None).dtype == torch.uint8
    assert tensors.decode([1.0, -2.0], "int32", None).tolist() == [1, -2]
    assert tensors.decode([True, 0], "bool", None).tolist() == [True, False]


def test_nan_in_npy_is_kept_but_never_made_an_integer() -> None:
    body = npy(np.array([np.nan, 1.0]))
    assert tensors.decode(body, "float32", None).isnan().tolist() == [True, False]
    assert refused(body, "int64").status == 400


def test_objects_are_never_unpickled() -> None:
    body = npy(np.array([1, None], dtype=object), allow_pickle=True)
    assert "never unpickled" in refused(body).message


def test_a_header_that_lies_about_its_size_allocates_nothing() -> None:
    body = npy(np.zeros(4, dtype=np.float64)).replace(b"(4,)", b"(4000000000000,)", 1)
    assert "announces 32000000000000 bytes" in refused(body).message


@pytest.mark.parametrize("body", [b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00" + b"x" * 90])
def test_a_broken_header(body: bytes) -> None:
    assert "header cannot be read" in refused(body).message


def test_structured_and_text_arrays_are_no_numbers() -> None:
    for array in (np.zeros(2, dtype=[("a", "f4")]), np.array(["1"])):
        assert "not a number" in refused(npy(array)).message


def test_npy_answers() -> None:
    assert np.load(io.BytesIO(tensors.to_npy(torch.tensor([1.0, 2.0])))).tolist() == [1.0, 2.0]
    with pytest.raises(ItemError) as caught:
        tensors.to_npy([torch.ones(1)])
    assert caught.value.status == 406
