from __future__ import annotations

import pytest

from servekit.domain.gpu import Gpu
from servekit.domain.gpu_load import GpuSample, gpu_loads

GPU, OTHER = Gpu(0, "GPU-a", "H200"), Gpu(1, "GPU-b", "H200")


def test_means_maxima_and_energy_of_the_window() -> None:
    samples = [
        GpuSample(t, "GPU-a", use, memory, power, 40 + t, 1980, energy)
        for t, use, memory, power, energy in [
            (1, 0, 100, 90, 1000),  # warm-up
            (5, 50, 200, 300, 1400),
            (7, 70, 260, 500, 2200),
            (10, 60, 240, 400, 3400),
            (12, 0, 100, 90, 3900),  # after the end
        ]
    ]
    first, second = gpu_loads((GPU, OTHER), samples, warmup_s=5, end_s=10, answered=500)
    assert (first.use_mean, first.use_max, first.memory_max_mib) == (60, 70, 260)
    assert (first.power_mean_w, first.power_max_w, first.temperature_max_c) == (400, 500, 50)
    assert first.energy_j == 2000, "a difference of the counter, of the window alone"
    assert first.energy_per_request_j == pytest.approx(4.0)
    assert first.count == 3
    assert len(first.samples) == 5, "the plots show everything"
    assert (second.count, second.use_mean, second.energy_j) == (0, None, None), "no sample is not zero"


def test_what_the_driver_does_not_tell_stays_unknown() -> None:
    (load,) = gpu_loads((GPU,), [GpuSample(t, "GPU-a", use=10.0) for t in (1, 2)], 0, 5, 7)
    assert (load.use_mean, load.power_mean_w, load.energy_j, load.energy_per_request_j) == (10, None, None, None)


def test_energy_of_nothing_answered_is_not_divided() -> None:
    samples = [GpuSample(1, "GPU-a", energy_j=5.0), GpuSample(2, "GPU-a", energy_j=9.0)]
    (load,) = gpu_loads((GPU,), samples, 0, 5, 0)
    assert (load.energy_j, load.energy_per_request_j) == (4.0, None)
