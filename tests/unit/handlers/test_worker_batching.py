from __future__ import annotations

from typing import Any

import pytest
import torch

from servekit_worker.batching import serve
from servekit_worker.errors import ItemError
from servekit_worker.items import Item, read


class Doubling:
    """Doubles; remembers the shape of each batch; fails on items as long as ``fails``."""

    def __init__(self, fails: int = -1, error: Exception | None = None) -> None:
        self.batches: list[list[int]] = []
        self.fails, self.error = fails, error or RuntimeError("shapes do not match")

    def __call__(self, batch: torch.Tensor) -> list[Any]:
        self.batches.append(list(batch.shape))
        if batch.shape[1] == self.fails:
            raise self.error
        return (batch * 2).tolist()


def tensor(item: Item) -> torch.Tensor:
    if item.body == "bad":
        raise ItemError(415, "bad")
    return torch.tensor(item.body, dtype=torch.float32)


def items(*bodies: Any) -> list[Item | ItemError]:
    return [body if isinstance(body, ItemError) else Item(body) for body in bodies]


def test_one_forward_pass_in_order_around_the_bad_ones() -> None:
    infer = Doubling()
    unread = ItemError(400, "empty")
    results = serve(items([1.0], "bad", [2.0], unread, [3.0]), tensor, infer)
    assert infer.batches == [[3, 1]]
    assert [results[i] for i in (0, 2, 4)] == [[2.0], [4.0], [6.0]]
    assert (results[1].status, results[3]) == (415, unread)


def test_nothing_good_means_no_forward_pass() -> None:
    infer = Doubling()
    assert [r.status for r in serve(items("bad", "bad"), tensor, infer)] == [415, 415]
    assert infer.batches == []


def test_shapes_make_batches_of_their_own() -> None:
    infer = Doubling()
    results = serve(items([1.0], [1.0, 2.0], [3.0]), tensor, infer)
    assert infer.batches == [[2, 1], [1, 2]]
    assert results == [[2.0], [2.0, 4.0], [6.0]]


def test_a_shape_that_fails_leaves_the_others_their_answers() -> None:
    results = serve(items([1.0], [1.0, 2.0], [3.0]), tensor, Doubling(fails=2))
    assert (results[0], results[2]) == ([2.0], [6.0])
    assert results[1].status == 500
    assert "shape [2]" in results[1].message


def test_the_failure_of_the_whole_batch_passes_through() -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"):
        serve(items([1.0], [2.0]), tensor, Doubling(fails=1))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory")])
def test_out_of_memory_is_torchserves_to_answer(error: Exception) -> None:
    with pytest.raises(type(error)):
        serve(items([1.0, 2.0], [1.0]), tensor, Doubling(fails=2, error=error))


def test_an_unforeseen_error_of_preprocess_stays_with_its_item() -> None:
    def preprocess(item: Item) -> torch.Tensor:
        return torch.tensor([1.0 / item.body])

    results = serve(items(0, 2), preprocess, Doubling())
    assert results[0].status == 500
    assert "division" not in results[0].message
    assert results[1] == [1.0]


def test_preprocess_must_return_a_tensor() -> None:
    with pytest.raises(TypeError, match=r"preprocess must return a torch\.Tensor, not list"):
        serve(items(1), lambda item: [1.0], Doubling())  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("key", ["body", "data"])
def test_an_item_is_read_from_body_or_data(key: str) -> None:
    item = read({key: b"x"}, {"Accept": "a/b", key: {"content-type": "c"}})
    assert item == Item(b"x", {"accept": "a/b"})


@pytest.mark.parametrize(("fields", "told"), [({"body": b""}, "empty"), ({"file": b"x"}, "got fields: file")])
def test_no_body_is_a_400(fields: dict[str, bytes], told: str) -> None:
    with pytest.raises(ItemError, match=told) as caught:
        read(fields, {})
    assert caught.value.status == 400
