"""How numbers are computed: strict fp32, TF32, or autocast to bf16 or fp16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from servekit_worker.errors import SetupError

# The first CUDA compute capability with the units for it. bf16 and TF32 came with Ampere. Half floats
# are computed natively from 5.3, but only Volta's tensor cores make them worth choosing unasked.
_NEEDS = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3)}
_AUTO = (("bf16", (8, 0)), ("fp16", (7, 0)))
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_UNCAST = "aten.convolution.default"  # what run_decompositions makes of conv2d


@dataclass(frozen=True)
class Precision:
    """``name`` is fp32, tf32, bf16 or fp16; never auto. ``reason`` says who chose it and why.

    ``own``: it is built into the model's file, and autocast has no part in it.
    """

    name: str
    reason: str
    device_type: str
    own: bool = False

    def configure(self) -> None:
        """Set torch's process-wide switches: TF32 for precision tf32 only, else strict fp32.

        Under autocast the operations that stay in fp32 are strict too. Call it after the user's code
        was imported, which may have turned the switches itself.
        """
        allowed = self.name == "tf32"
        torch.set_float32_matmul_precision("high" if allowed else "highest")  # the CPU's oneDNN as well
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed  # convolutions; torch's own default is True

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        dtype = None if self.own else _AUTOCAST.get(self.name)
        return torch.autocast(self.device_type, dtype=dtype) if dtype else nullcontext()


@contextmanager
def strict(needed: bool) -> Iterator[None]:
    """No TF32 inside, when ``needed``. The switches are the process's: a worker answers on one thread."""
    if not needed:
        yield
        return
    wide = torch.get_float32_matmul_precision()
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(wide)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def resolve(wanted: str, device: torch.device, reason: str | None = None) -> Precision:
    """Turn ``auto`` into a precision by the device's capability; refuse what the device cannot do.

    ``reason`` is what a fixed precision's reason says instead of "as configured".
    """
    configured = reason or "as configured"
    if device.type != "cuda":
        return _on_cpu(wanted, device, configured)
    capability = torch.cuda.get_device_capability(device)
    told = f"compute capability {capability[0]}.{capability[1]}"
    if wanted == "auto":
        for name, needs in _AUTO:
            if capability >= needs:
                return Precision(name, f"auto: {told}", device.type)
        return Precision("fp32", f"auto: {told} has neither bf16 nor fast fp16", device.type)
    needed = _NEEDS.get(wanted)
    if needed and capability < needed:
        raise SetupError(
            f"precision {wanted} needs compute capability {needed[0]}.{needed[1]} or newer, but {device} has "
            f"{told}. Set precision to auto or fp32."
        )
    return Precision(wanted, configured, device.type)


def of_engine(model: Any, wanted: str, device: torch.device, reason: str | None = None) -> Precision:
    """The precision of a model that is no torch.nn.Module, by what its file has built in.

    ``model.own`` is the precision built in (None: torch's switches and autocast decide, as elsewhere) and
    ``model.source`` says where it comes from. SetupError for a precision that would have no effect.
    """
    if model.own is not None:
        if wanted not in ("auto", model.own):
            raise SetupError(
                f"precision {wanted} would have no effect: {model.source} is {model.own}. Set precision to auto or "
                f"{model.own}, or make the file in the other precision."
            )
        told = model.source if wanted == "auto" or reason is None else reason
        return Precision(model.own, told, device.type, own=True)
    if wanted == "auto" and model.asserts_dtypes:
        return Precision("fp32", "auto: the exported program asserts the types it was traced with", device.type)
    chosen = resolve(wanted, device, reason)
    if chosen.name == "bf16" and device.type == "cpu" and _UNCAST in model.operations:
        raise SetupError(
            f"precision bf16 would have no effect on the program's convolutions: autocast on the CPU does not know "
            f"{_UNCAST}. Set precision to auto or fp32, or export without run_decompositions()."
        )
    return chosen


def _on_cpu(wanted: str, device: torch.device, configured: str) -> Precision:
    if wanted == "auto":
        return Precision("fp32", "auto: the CPU", device.type)
    if wanted in ("tf32", "fp16"):
        raise SetupError(
            f"precision {wanted} needs an NVIDIA GPU, but this worker is on the CPU. "
            "Set precision to auto, fp32 or bf16, or serve with a GPU."
        )
    return Precision(wanted, configured, device.type)
