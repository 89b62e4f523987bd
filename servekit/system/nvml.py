"""The NVIDIA driver, through NVML: the one file that imports pynvml."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from servekit.domain.gpu import Gpu
from servekit.domain.gpu_load import GpuSample
from servekit.errors import GpuError

_MIB = 1024 * 1024


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on a GPU; ``memory_mib`` None where the driver does not tell."""

    pid: int
    memory_mib: int | None


def inventory() -> tuple[Gpu, ...]:
    """All NVIDIA GPUs of this host by PCI order; empty without a driver. GpuError when the driver fails."""
    with _session() as nvml:
        if nvml is None:
            return ()
        return tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))


def driver_version() -> str | None:
    with _session() as nvml:
        return _text(nvml.nvmlSystemGetDriverVersion()) if nvml else None


def processes(uuid: str) -> tuple[GpuProcess, ...] | None:
    """Compute processes on a GPU; None where the driver gives no list."""
    with _session() as nvml:
        if nvml is None:
            return None
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        found = _supported(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if found is None:
            return None
        return tuple(GpuProcess(p.pid, p.usedGpuMemory // _MIB if p.usedGpuMemory is not None else None) for p in found)


@contextlib.contextmanager
def reader(uuids: Sequence[str]) -> Iterator[Callable[[], list[GpuSample]]]:
    """A function that takes one sample of each GPU, inside one NVML session. GpuError without a driver."""
    with _session() as nvml:
        if nvml is None:
            raise GpuError("There is no NVIDIA driver to ask.")
        handles = [(uuid, nvml.nvmlDeviceGetHandleByUUID(uuid)) for uuid in uuids]
        yield lambda: [_sample(nvml, uuid, handle) for uuid, handle in handles]


def _sample(nvml: Any, uuid: str, handle: Any) -> GpuSample:
    use = _supported(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    power = _supported(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    energy = _supported(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    return GpuSample(
        t_s=time.monotonic(),
        uuid=uuid,
        use=float(use.gpu) if use else None,
        memory_mib=memory.used / _MIB if memory else None,
        power_w=power / 1000 if power is not None else None,  # NVML says milliwatts
        temperature_c=_supported(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        sm_clock_mhz=_supported(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        energy_j=energy / 1000 if energy is not None else None,  # NVML says millijoules
    )


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _supported(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_total_mib=memory.total // _MIB if memory else None,
        memory_free_mib=memory.free // _MIB if memory else None,
        compute_capability=(capability[0], capability[1]) if capability else None,
    )


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    """NVML, initialised; None where there is no driver, which is an answer and not a failure."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if error.value in absent:
            yield None
            return
        raise GpuError(f"The NVIDIA driver does not answer: {error}.", hint="Look at: nvidia-smi") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise GpuError(f"The NVIDIA driver failed: {error}.", hint="Look at: nvidia-smi") from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _supported(nvml: Any, call: Callable[[], Any]) -> Any:
    """The value, or None where this driver or GPU does not support the query."""
    try:
        return call()
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_NOT_FOUND):
            return None
        raise


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
