"""GPUs: what a host has, what a user asks for, and which of them a server gets.

Two numberings meet here and nowhere else. A *physical* GPU has an index and a UUID on the host; inside
the server the visible ones are numbered again from 0: the *ordinals*, which TorchServe calls deviceIds
and CUDA calls ``cuda:N``. ``GpuPlan`` keeps both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from servekit.errors import ConfigError, GpuError, raise_together


@dataclass(frozen=True)
class Gpu:
    """One physical GPU as NVML reports it; ``None`` where the driver does not support a value."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int | None = None
    memory_free_mib: int | None = None
    compute_capability: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


@dataclass(frozen=True)
class GpuPlan:
    """The physical GPUs given to one server, in the order of the server's ordinals 0..n-1."""

    gpus: tuple[Gpu, ...] = ()

    @property
    def count(self) -> int:
        return len(self.gpus)

    @property
    def ordinals(self) -> tuple[int, ...]:
        return tuple(range(len(self.gpus)))

    @property
    def visible_devices(self) -> str:
        """CUDA_VISIBLE_DEVICES of the server: plain integers, since TorchServe cannot read UUIDs."""
        return ",".join(str(gpu.index) for gpu in self.gpus)

    def physical(self, ordinal: int) -> Gpu:
        """The host's GPU behind the server's ``cuda:<ordinal>``."""
        return self.gpus[ordinal]

    def worker_gpus(self, workers: int) -> tuple[Gpu | None, ...]:
        """Where TorchServe puts ``workers`` workers: round robin over the ordinals; None is the CPU."""
        if not self.gpus:
            return (None,) * workers
        return tuple(self.gpus[i % len(self.gpus)] for i in range(workers))


def plan_gpus(request: str | None, inventory: Sequence[Gpu]) -> GpuPlan:
    """Choose GPUs. ``request`` is ``--gpus``: ``0``, ``0,1``, ``all``, ``none``; None takes all there are.

    Raises ConfigError for what cannot be read, GpuError for what does not exist or is named twice, with a
    list of what exists.
    """
    word = "default" if request is None else request.strip().lower()
    if word not in ("default", "none", "all") and not re.fullmatch(r"\d{1,4}(\s*,\s*\d{1,4})*", word, re.ASCII):
        raise ConfigError(
            f"--gpus {request!r} cannot be read.", hint="Write indexes with commas between (0 or 0,1), all or none."
        )
    if word == "none":
        return GpuPlan()
    if word in ("all", "default"):
        if not inventory and word == "all":
            raise GpuError("--gpus all: this host shows no NVIDIA GPU.", hint=_no_gpu_hint())
        return GpuPlan(tuple(inventory))
    by_index = {gpu.index: gpu for gpu in inventory}
    chosen: list[Gpu] = []
    problems: list[str] = []
    for part in word.split(","):
        part = part.strip()
        if int(part) not in by_index:
            problems.append(f"--gpus {request}: there is no GPU {int(part)}.")
        elif by_index[int(part)] in chosen:
            problems.append(f"--gpus {request}: GPU {int(part)} is named twice.")
        else:
            chosen.append(by_index[int(part)])
    if problems and not inventory:
        problems = [f"--gpus {request}: this host shows no NVIDIA GPU."]
    raise_together(GpuError, problems, hint=_exists_hint(inventory))
    return GpuPlan(tuple(chosen))


def _exists_hint(inventory: Sequence[Gpu]) -> str:
    if not inventory:
        return _no_gpu_hint()
    return "Write indexes, all or none. There are: " + ", ".join(str(gpu) for gpu in inventory) + "."


def _no_gpu_hint() -> str:
    return (
        "Check that nvidia-smi lists a GPU (driver loaded, device passed into this machine), "
        "or serve on the CPU with --gpus none."
    )
