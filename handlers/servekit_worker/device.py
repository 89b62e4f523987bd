"""The GPU that TorchServe assigned to this worker, or the CPU when it assigned none."""

from __future__ import annotations

import os

import torch

from servekit_worker.errors import SetupError


def claim(gpu_id: int | None) -> torch.device:
    """Make ``gpu_id`` this process's current CUDA device and return it; the CPU for None.

    Call it before any other CUDA work: memory allocated earlier would land on GPU 0. A GPU that was
    assigned and is not there is a SetupError; the CPU never stands in for it.
    """
    if gpu_id is None:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SetupError(
            f"the server assigned GPU {gpu_id}, but this torch sees no CUDA device "
            f"(torch {torch.__version__}, built for CUDA {torch.version.cuda}, {_mask()}). "
            "Install a torch built for CUDA that matches the driver, or serve with --gpus none."
        )
    if gpu_id >= torch.cuda.device_count():
        raise SetupError(
            f"the server assigned GPU {gpu_id}, but this worker sees {torch.cuda.device_count()} CUDA "
            f"device(s), numbered from 0 ({_mask()}). Make deviceIds and the mask agree."
        )
    torch.cuda.set_device(gpu_id)
    return torch.device("cuda", gpu_id)


def uuid(device: torch.device) -> str | None:
    """The GPU's UUID as NVML writes it (``GPU-...``); None on the CPU or where torch does not tell."""
    if device.type != "cuda":
        return None
    value = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if value is None:
        return None
    text = str(value)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _mask() -> str:
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "CUDA_VISIBLE_DEVICES is not set" if mask is None else f"CUDA_VISIBLE_DEVICES={mask}"
