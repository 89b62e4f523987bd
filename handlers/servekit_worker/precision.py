"""How numbers are computed: strict fp32, TF32, or autocast to bf16 or fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from servekit_worker.errors import SetupError

# The first CUDA compute capability with the units for it. bf16 and TF32 came with Ampere. Half floats
# are computed natively from 5.3, but only Volta's tensor cores make them worth choosing unasked.
_NEEDS = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3)}
_AUTO = (("bf16", (8, 0)), ("fp16", (7, 0)))
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """``name`` is fp32, tf32, bf16 or fp16; never auto. ``reason`` says who chose it and why."""

    name: str
    reason: str
    device_type: str

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
        dtype = _AUTOCAST.get(self.name)
        return torch.autocast(self.device_type, dtype=dtype) if dtype else nullcontext()


def resolve(wanted: str, device: torch.device) -> Precision:
    """Turn ``auto`` into a precision by the device's capability; refuse what the device cannot do."""
    if device.type != "cuda":
        return _on_cpu(wanted, device)
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
    return Precision(wanted, "as configured", device.type)


def _on_cpu(wanted: str, device: torch.device) -> Precision:
    if wanted == "auto":
        return Precision("fp32", "auto: the CPU", device.type)
    if wanted in ("tf32", "fp16"):
        raise SetupError(
            f"precision {wanted} needs an NVIDIA GPU, but this worker is on the CPU. "
            "Set precision to auto, fp32 or bf16, or serve with a GPU."
        )
    return Precision(wanted, "as configured", device.type)
