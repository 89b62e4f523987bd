from __future__ import annotations

import pytest
from nouns import gpu

from servekit.domain.gpu import GpuPlan, plan_gpus
from servekit.errors import GpuError

TWO = (gpu(0), gpu(1, "NVIDIA T4"))


@pytest.mark.parametrize(
    ("request_", "indexes"),
    [
        (None, (0, 1)),
        ("all", (0, 1)),
        (" ALL ", (0, 1)),
        ("none", ()),
        ("None", ()),
        ("0", (0,)),
        ("1", (1,)),
        ("01", (1,)),
        ("1,0", (1, 0)),
        (" 0 , 1 ", (0, 1)),
    ],
)
def test_forms(request_: str | None, indexes: tuple[int, ...]) -> None:
    assert tuple(g.index for g in plan_gpus(request_, TWO).gpus) == indexes


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ("2", ["there is no GPU 2"]),
        ("0,0", ["GPU 0 is named twice"]),
        ("0,00", ["GPU 0 is named twice"]),
        ("", ["'' is not a GPU index"]),
        ("0,", ["'' is not a GPU index"]),
        ("-1", ["'-1' is not a GPU index"]),
        ("\u0661", ["'\u0661' is not a GPU index"]),
        ("cuda:0", ["'cuda:0' is not a GPU index"]),
        ("all,0", ["'all' is not a GPU index"]),
        ("7,x,1,1", ["there is no GPU 7", "'x' is not a GPU index", "GPU 1 is named twice"]),
    ],
)
def test_errors_come_all_at_once_and_list_what_exists(request_: str, told: list[str]) -> None:
    with pytest.raises(GpuError) as caught:
        plan_gpus(request_, TWO)
    assert caught.value.message.count("--gpus") == len(told)
    for words in told:
        assert words in caught.value.message
    assert "There are: GPU 0 (NVIDIA H100), GPU 1 (NVIDIA T4)." in caught.value.hint


def test_a_host_without_gpus() -> None:
    assert plan_gpus(None, ()) == plan_gpus("none", ()) == GpuPlan()
    for request in ("all", "0", "0,1,x"):
        with pytest.raises(GpuError, match="this host shows no NVIDIA GPU") as caught:
            plan_gpus(request, ())
        assert "--gpus none" in caught.value.hint


def test_the_two_numberings() -> None:
    plan = plan_gpus("3,1", (gpu(1), gpu(2), gpu(3)))
    assert plan.count == 2
    assert plan.ordinals == (0, 1)
    assert plan.visible_devices == "3,1"
    assert [plan.physical(ordinal).index for ordinal in plan.ordinals] == [3, 1]


def test_workers_go_round_robin() -> None:
    plan = plan_gpus("3,1", (gpu(1), gpu(3)))
    assert [g.index if g else None for g in plan.worker_gpus(5)] == [3, 1, 3, 1, 3]
    assert plan.worker_gpus(0) == ()
    assert GpuPlan().worker_gpus(2) == (None, None)
    assert GpuPlan().visible_devices == ""
