"""What a batch costs: time, and memory apart by weights, activations and the CUDA context."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from servekit.probes.proof.served import Request, Served

_MIB = 1024 * 1024
_WARM_RUNS, _WARM_SECONDS = 1000, 0.5
_BLOCKS, _RUNS, _SECONDS = 5, 50, 0.4


class Inner:
    """The device's part of ``handle``: the batch as preprocess made it, and the call that answers it."""

    def __init__(self, served: Served, requests: Sequence[Request]) -> None:
        self._infer = served.handler._infer
        self._batches: list[Any] = []

        def caught(batch: Any) -> Any:
            self._batches.append(batch)
            return self._infer(batch)

        served.handler._infer = caught
        try:
            served.answer(requests)
        finally:
            del served.handler._infer

    def run(self) -> None:
        for batch in self._batches:
            self._infer(batch)


def batch_ms(served: Served, requests: Sequence[Request], size: int, gpu: int | None) -> float:
    """Milliseconds of a batch of ``size`` on the device, once it is warm: the least median of five blocks.

    Other work on the host only ever adds time, and adds it in bursts.
    """
    import torch

    inner = Inner(served, [requests[i % len(requests)] for i in range(size)])

    def once() -> float:
        before = time.perf_counter()
        inner.run()
        if gpu is not None:
            torch.cuda.synchronize(gpu)
        return (time.perf_counter() - before) * 1000

    # A GPU that idled takes a while to raise its clocks, and would make whatever is measured first look slow.
    _for(once, _WARM_RUNS, 0.0 if gpu is None else _WARM_SECONDS)
    return min(statistics.median(_for(once, _RUNS, _SECONDS)) for _ in range(_BLOCKS))


def _for(once: Callable[[], float], runs: int, seconds: float) -> list[float]:
    """Repeat for ``seconds``, but at least twice and at most ``runs`` times."""
    started, times = time.perf_counter(), list[float]()
    while len(times) < 2 or (len(times) < runs and time.perf_counter() - started < seconds):
        times.append(once())
    return times


def memory(served: Served, requests: Sequence[Request], largest: int, gpu: int | None) -> list[dict[str, Any]]:
    """Rows for batches of 1, 2, 4, ... ``largest``."""
    sizes = sorted({*(2**k for k in range(largest.bit_length()) if 2**k <= largest), largest})
    weights = _weights(served.handler.model)
    rows = []
    for size in sizes:
        inner = Inner(served, [requests[i % len(requests)] for i in range(size)])
        peak = _peak_on_gpu(inner, gpu) if gpu is not None else _peak_on_host(inner)
        rows.append({"batch": size, "weights_mib": weights / _MIB, "activations_mib": peak / _MIB, "context_mib": None})
    if gpu is not None:
        context = _context_mib(gpu)
        for row in rows:
            row["context_mib"] = context
    return rows


def host_mib() -> float | None:
    """Resident memory of this process."""
    value = _status("VmRSS")
    return None if value is None else value / _MIB


def _weights(model: Any) -> int:
    import torch

    if not isinstance(model, torch.nn.Module):
        return 0
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*model.parameters(), *model.buffers())
    }
    return sum(storages.values())


def _peak_on_gpu(inner: Inner, gpu: int) -> int:
    import torch

    torch.cuda.synchronize(gpu)
    before = torch.cuda.memory_allocated(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    inner.run()
    torch.cuda.synchronize(gpu)
    return int(torch.cuda.max_memory_allocated(gpu) - before)


def _peak_on_host(inner: Inner) -> int:
    """Growth of the resident memory at its peak; 0 where the kernel lets no process reset that mark."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # else earlier batches' memory is used again, and nothing grows
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    before = _status("VmRSS") or 0
    inner.run()
    return max(0, (_status("VmHWM") or 0) - before)


def _status(key: str) -> int | None:
    """A line of /proc/self/status in bytes."""
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _context_mib(gpu: int) -> float | None:
    """What this process holds of the GPU beside torch's allocator, by the driver's list of processes."""
    import torch

    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(gpu).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return float((process.usedGpuMemory - torch.cuda.memory_reserved(gpu)) / _MIB)
    except Exception:  # no NVML, no permission, another PID namespace: the number stays unknown
        return None
    return None
