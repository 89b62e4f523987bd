"""What GPUs did during a load test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servekit.domain.gpu import Gpu


@dataclass(frozen=True)
class GpuSample:
    """One look at one GPU; None where the driver does not support a value.

    ``t_s`` is CLOCK_MONOTONIC as sampled, or seconds from the start of the test once shifted. ``use`` is
    NVML's utilisation: percent of time in which at least one kernel ran, which is not occupancy.
    """

    t_s: float
    uuid: str
    use: float | None = None
    memory_mib: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    energy_j: float | None = None
    """the board's counter since the driver was loaded; only differences mean something"""


@dataclass(frozen=True)
class GpuLoad:
    """One GPU over the measured window. ``energy_j`` is the difference of the board's own counter."""

    gpu: Gpu
    samples: tuple[GpuSample, ...]
    count: int
    use_mean: float | None
    use_max: float | None
    memory_max_mib: float | None
    power_mean_w: float | None
    power_max_w: float | None
    temperature_max_c: float | None
    sm_clock_mean_mhz: float | None
    energy_j: float | None
    energy_per_request_j: float | None


def gpu_loads(
    gpus: Sequence[Gpu], samples: Sequence[GpuSample], warmup_s: float, end_s: float, answered: int
) -> tuple[GpuLoad, ...]:
    """One GpuLoad a GPU; ``samples`` are in seconds from the start of the test."""
    return tuple(_one(gpu, [s for s in samples if s.uuid == gpu.uuid], warmup_s, end_s, answered) for gpu in gpus)


def _one(gpu: Gpu, samples: Sequence[GpuSample], warmup_s: float, end_s: float, answered: int) -> GpuLoad:
    window = [sample for sample in samples if warmup_s <= sample.t_s <= end_s]
    energies = [sample.energy_j for sample in window if sample.energy_j is not None]
    energy = energies[-1] - energies[0] if len(energies) > 1 else None
    use = [sample.use for sample in window]
    power = [sample.power_w for sample in window]
    return GpuLoad(
        gpu=gpu,
        samples=tuple(samples),
        count=len(window),
        use_mean=_mean(use),
        use_max=_max(use),
        memory_max_mib=_max([sample.memory_mib for sample in window]),
        power_mean_w=_mean(power),
        power_max_w=_max(power),
        temperature_max_c=_max([sample.temperature_c for sample in window]),
        sm_clock_mean_mhz=_mean([sample.sm_clock_mhz for sample in window]),
        energy_j=energy,
        energy_per_request_j=energy / answered if energy is not None and answered else None,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _max(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
