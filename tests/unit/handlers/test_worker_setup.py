"""The small parts of a worker's start: labels, threads, warm-up, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from servekit_worker import labels, report, threads, warmup
from servekit_worker.errors import ItemError, SetupError
from servekit_worker.items import Item

CPU = torch.device("cpu")


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_text('{"0": "zéro", "10": ["n02", "tench"]}', encoding="utf-8")
    assert labels.load(path) == {0: "zéro", 10: "tench"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read: No such file"),
        ("{", "not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"a": "b"}', "'a': 'b' is not a class index"),
        ('{"1": 2}', "'1': 2 is not a class index"),
        ('{"1": []}', "is not a class index"),
    ],
)
def test_bad_labels(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "names.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SetupError, match=r"labels names\.json: ") as caught:
        labels.load(path)
    assert told in str(caught.value)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """torch's two thread pools, pretended: a process can set the real ones once."""
    sizes = {"intra": 32, "inter": 16}
    for pool, word in (("intra", "threads"), ("inter", "interop_threads")):
        monkeypatch.setattr(torch, f"get_num_{word}", lambda pool=pool: sizes[pool])
        monkeypatch.setattr(torch, f"set_num_{word}", lambda n, pool=pool: sizes.update({pool: n}))
    return sizes


def test_threads_are_bounded(pools: dict[str, int]) -> None:
    assert threads.bound(2) == 2
    assert pools == {"intra": 2, "inter": 1}


def test_threads_are_left_alone_unless_asked(pools: dict[str, int]) -> None:
    assert threads.bound(None) == 32
    assert pools == {"intra": 32, "inter": 16}


def test_a_pool_that_runs_already_is_said_aloud(
    pools: dict[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: int) -> None:
        raise RuntimeError("cannot set number of interop threads after parallel work has started")

    monkeypatch.setattr(torch, "set_num_interop_threads", refuse)
    assert threads.bound(2) == 2
    assert "inter-op threads stay" in caplog.text


@pytest.mark.parametrize(("largest", "sizes"), [(None, (1,)), (1, (1,)), (8, (1, 8))])
def test_the_smallest_and_the_largest_batch(largest: int | None, sizes: tuple[int, ...]) -> None:
    assert warmup.batch_sizes(largest) == sizes


def test_warm_up_sends_each_batch_size_as_often_as_asked() -> None:
    seen: list[list[int]] = []

    def infer(batch: torch.Tensor) -> list[Any]:
        seen.append(list(batch.shape))
        return [None] * len(batch)

    assert warmup.run(infer, torch.zeros(3), (1, 4), 2, CPU) >= 0
    assert seen == [[1, 3], [1, 3], [4, 3], [4, 3]]


@pytest.mark.parametrize(
    ("name", "content", "body"),
    [
        ("a.json", b"[1, 2]", [1, 2]),
        ("a.txt", b"hello", "hello"),
        ("a.png", b"\x89PNG", b"\x89PNG"),
    ],
)
def test_an_example_is_decoded_as_torchserve_would(tmp_path: Path, name: str, content: bytes, body: Any) -> None:
    (tmp_path / name).write_bytes(content)
    seen: list[Item] = []

    def preprocess(item: Item) -> torch.Tensor:
        seen.append(item)
        return torch.ones(1)

    assert torch.equal(warmup.read_example(tmp_path / name, preprocess), torch.ones(1))
    assert seen == [Item(body)]


def test_an_example_that_the_handler_refuses_ends_the_start(tmp_path: Path) -> None:
    def preprocess(item: Item) -> torch.Tensor:
        raise ItemError(415, "no image.")

    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(SetupError, match=r"example a\.png: the handler refuses it: 415 no image\."):
        warmup.read_example(tmp_path / "a.png", preprocess)
    (tmp_path / "a.json").write_bytes(b"{")
    with pytest.raises(SetupError, match=r"example a\.json: cannot be decoded"):
        warmup.read_example(tmp_path / "a.json", preprocess)
    with pytest.raises(SetupError, match=r"example b\.png: cannot be read"):
        warmup.read_example(tmp_path / "b.png", preprocess)


def test_the_report_is_the_documented_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    facts: dict[str, Any] = {
        "model": "digits",
        "pid": 7,
        "device": "cuda:0",
        "gpu_id": 0,
        "gpu_uuid": "GPU-1",
        "precision": "bf16",
        "precision_reason": "why",
        "threads": 2,
        "load_s": 0.5,
        "warmup_s": None,
        "warmup_batches": (),
        "torch": "2.4",
    }
    path = report.WorkerReport(**facts).write(folder)
    assert [file.name for file in folder.iterdir()] == ["digits-7.json"]
    assert json.loads(path.read_text()) == {**facts, "warmup_batches": [], "schema": 1}


def test_reports_are_written_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVEKIT_WORKER_REPORTS", raising=False)
    assert report.folder() is None
    monkeypatch.setenv("SERVEKIT_WORKER_REPORTS", "/reports")
    assert report.folder() == Path("/reports")
