from __future__ import annotations

import pytest
from nouns import gpu

from servekit.domain.gpu import Gpu, GpuPlan, plan_gpus
from servekit.errors import ConfigError, GpuError

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
        ("7,1,1", ["there is no GPU 7", "GPU 1 is named twice"]),
    ],
)
def test_errors_come_all_at_once_and_list_what_exists(request_: str, told: list[str]) -> None:
    with pytest.raises(GpuError) as caught:
        plan_gpus(request_, TWO)
    assert caught.value.message.count("--gpus") == len(told)
    for words in told:
        assert words in caught.value.message
    assert "There are: GPU 0 (NVIDIA H100), GPU 1 (NVIDIA T4)." in caught.value.hint


@pytest.mark.parametrize(
    "request_",
    ["", " ", "0,", ",0", "-1", "0-1", "\u0661", "cuda:0", "all,0", "none,0", "GPU-abc", "99999999999", "7,x"],
)
@pytest.mark.parametrize("inventory", [(), TWO])
def test_what_cannot_be_read_is_no_matter_of_hardware(request_: str, inventory: tuple[Gpu, ...]) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        plan_gpus(request_, inventory)
    assert "0,1" in caught.value.hint


def test_a_host_without_gpus() -> None:
    assert plan_gpus(None, ()) == plan_gpus("none", ()) == GpuPlan()
    for request in ("all", "0", "0,1"):
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
