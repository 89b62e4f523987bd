"""Samples of a pretended driver: units, gaps, and a card that is lost in the middle."""

from __future__ import annotations

import sys
import time

import pytest
from fakes.pynvml import MIB, Card, Driver

from servekit.system.gpu_sampler import GpuSampler


def sample(driver: Driver, monkeypatch: pytest.MonkeyPatch, *uuids: str, until: int = 3) -> GpuSampler:
    """Run until there are ``until`` samples, or the sampler has ended."""
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    deadline = time.monotonic() + 5
    with GpuSampler(uuids, hz=200) as sampler:
        while len(sampler.samples) < until and sampler.problem is None and time.monotonic() < deadline:
            time.sleep(0.005)
    return sampler


def test_units_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver((Card("GPU-a", total=1000 * MIB, free=400 * MIB),))
    sampler = sample(driver, monkeypatch, "GPU-a")
    first = sampler.samples[0]
    assert (first.uuid, first.use, first.memory_mib, first.power_w) == ("GPU-a", 63, 600, 250.5)
    assert (first.temperature_c, first.sm_clock_mhz, first.energy_j) == (41, 1980, 7000.5)
    assert sampler.problem is None
    assert driver.sessions == 0, "the session was closed"
    times = [one.t_s for one in sampler.samples]
    assert times == sorted(times)
    assert abs(times[0] - time.monotonic()) < 10, "CLOCK_MONOTONIC, as the requests"


def test_several_gpus_and_what_one_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Card("GPU-b", broken={"use": Driver.NVML_ERROR_NOT_SUPPORTED, "energy": Driver.NVML_ERROR_NOT_SUPPORTED})
    sampler = sample(Driver((Card("GPU-a"), quiet)), monkeypatch, "GPU-a", "GPU-b", until=4)
    told = [one for one in sampler.samples if one.uuid == "GPU-b"]
    assert told
    assert all((one.use, one.energy_j, one.power_w) == (None, None, 250.5) for one in told)


def test_a_lost_card_ends_it_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Card("GPU-a", broken={"power": Driver.NVML_ERROR_GPU_IS_LOST})
    sampler = sample(Driver((lost,)), monkeypatch, "GPU-a")
    assert sampler.samples == []
    assert sampler.problem is not None and "15" in sampler.problem


def test_no_gpu_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    sampler = sample(driver, monkeypatch, until=0)
    assert (sampler.samples, sampler.problem, driver.opened) == ([], None, 0)
