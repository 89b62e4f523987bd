from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from servekit_worker import device
from servekit_worker.errors import SetupError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend two GPUs; the list tells which one was made current."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


def test_no_gpu_assigned_is_the_cpu(two_gpus: list[int]) -> None:
    assert device.claim(None) == torch.device("cpu")
    assert two_gpus == []


def test_the_assigned_gpu_becomes_current(two_gpus: list[int]) -> None:
    assert device.claim(1) == torch.device("cuda", 1)
    assert two_gpus == [1]


def test_a_gpu_beyond_the_visible_ones(two_gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(SetupError, match=r"assigned GPU 2, but this worker sees 2 .*CUDA_VISIBLE_DEVICES=2,3"):
        device.claim(2)
    assert two_gpus == []


def test_no_cuda_is_an_error_that_torchserve_does_not_call_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SetupError, match="assigned GPU 0, but this torch sees no CUDA device") as caught:
        device.claim(0)
    assert not isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (SimpleNamespace(uuid="6f8a-11"), "GPU-6f8a-11"),
        (SimpleNamespace(uuid="GPU-6f8a-11"), "GPU-6f8a-11"),
        (SimpleNamespace(), None),
    ],
)
def test_uuid_is_written_as_nvml_writes_it(
    monkeypatch: pytest.MonkeyPatch, properties: SimpleNamespace, expected: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert device.uuid(torch.device("cuda", 0)) == expected
    assert device.uuid(torch.device("cpu")) is None
