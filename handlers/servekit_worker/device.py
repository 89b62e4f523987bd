"""The GPU that the server assigned, taken before anything else touches CUDA."""

from __future__ import annotations

import torch


class DeviceError(Exception):
    """The assigned device cannot be used.

    Not a RuntimeError: TorchServe reports one whose text holds the word CUDA as "System out of memory".
    """


def assigned_device(gpu_id: int | None) -> torch.device:
    """``cuda:<gpu_id>`` made current, or the CPU when the server assigned none.

    A server that counts GPUs which torch cannot see would otherwise serve from the CPU in silence.
    """
    if gpu_id is None or gpu_id < 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        build = "is a CPU build" if torch.version.cuda is None else "sees no CUDA device"
        raise DeviceError(
            f"the server assigned GPU {gpu_id}, but torch {torch.__version__} {build}; not falling back to the CPU"
        )
    if gpu_id >= torch.cuda.device_count():
        raise DeviceError(
            f"the server assigned GPU {gpu_id}, but torch sees only {torch.cuda.device_count()} device(s)"
        )
    # Handler code that says "cuda" without a number means this device from here on.
    torch.cuda.set_device(gpu_id)
    return torch.device("cuda", gpu_id)


def gpu_uuid(device: torch.device) -> str | None:
    """The UUID as NVML writes it (``GPU-...``), or None on the CPU and where torch does not tell."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else None
