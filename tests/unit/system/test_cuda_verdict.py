from __future__ import annotations

from typing import Any

import pytest
from nouns import gpu

from servekit.domain.gpu import GpuPlan
from servekit.errors import GpuError
from servekit.system import probe

PLAN = GpuPlan((gpu(3), gpu(1)))


def seen(*indexes: int, **changes: Any) -> dict[str, Any]:
    devices = [{"name": "H100", "uuid": gpu(index).uuid.upper(), "error": None} for index in indexes]
    return {"torch": "2.13.0", "cuda": "13.0", "devices": devices, "error": None, **changes}


def test_the_mask_of_the_server_is_what_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def run(name: str, *, env: dict[str, str]) -> dict[str, Any]:
        asked.update(name=name, mask=env["CUDA_VISIBLE_DEVICES"], order=env["CUDA_DEVICE_ORDER"])
        return seen(3, 1)

    monkeypatch.setattr(probe, "run", run)
    probe.check_cuda(PLAN)
    assert asked == {"name": "cuda", "mask": "3,1", "order": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (seen(error="this torch is a CPU build"), "torch 2.13.0 cannot use the GPU: this torch is a CPU build."),
        (seen(3), "torch sees 1 GPUs where 2 were promised."),
        (seen(1, 3), "but GPU 3 (NVIDIA H100) is"),
    ],
)
def test_what_does_not_fit(result: dict[str, Any], told: str) -> None:
    with pytest.raises(GpuError) as caught:
        probe.judge_cuda(result, PLAN)
    assert told in caught.value.message


def test_a_computation_that_fails_names_the_hosts_gpu() -> None:
    result = seen(3, 1)
    result["devices"][1]["error"] = "no kernel image"
    with pytest.raises(GpuError, match=r"GPU 1 \(NVIDIA H100\): a test computation failed: no kernel image"):
        probe.judge_cuda(result, PLAN)


def test_an_older_torch_that_tells_no_uuid() -> None:
    result = seen(1, 3)
    for device in result["devices"]:
        device["uuid"] = None
    probe.judge_cuda(result, PLAN)
