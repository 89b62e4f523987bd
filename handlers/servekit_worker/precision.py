"""Which arithmetic the forward pass uses, decided once, said aloud, never changed in silence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

CHOICES = ("auto", "fp32", "tf32", "bf16", "fp16")

# The first compute capability whose Tensor Cores do it (CUDA C++ Programming Guide, arithmetic throughput).
_SINCE = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0)}
_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """``name`` is what runs (fp32, tf32, bf16, fp16); ``reason`` is why, for the log and for status."""

    name: str
    reason: str

    @contextlib.contextmanager
    def applied(self, device: torch.device) -> Iterator[None]:
        """Around a forward pass: automatic mixed precision for bf16 and fp16, nothing otherwise."""
        if self.name in _DTYPE:
            with torch.autocast(device.type, dtype=_DTYPE[self.name]):
                yield
        else:
            yield


def choose(wanted: str, device: torch.device) -> Precision:
    """Resolve ``wanted`` for ``device`` and set the process's TF32 switches. ValueError if it cannot be."""
    if wanted not in CHOICES:
        raise ValueError(f"precision {wanted!r} is unknown: choose from {', '.join(CHOICES)}")
    precision = _on_cuda(wanted, device) if device.type == "cuda" else _on_cpu(wanted)
    # torch allows TF32 in convolutions by default: fp32 here means fp32.
    tf32 = precision.name != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    return precision


def _on_cpu(wanted: str) -> Precision:
    if wanted in ("auto", "fp32"):
        return Precision("fp32", "auto: fp32 on the CPU" if wanted == "auto" else "as asked for")
    if wanted == "bf16":
        return Precision("bf16", "as asked for")
    raise ValueError(f"precision {wanted} needs a GPU; on the CPU choose fp32, bf16 or auto")


def _on_cuda(wanted: str, device: torch.device) -> Precision:
    capability = torch.cuda.get_device_capability(device)
    shown = ".".join(map(str, capability))
    if wanted == "auto":
        name = next((n for n in ("bf16", "fp16") if capability >= _SINCE[n]), "fp32")
        return Precision(name, f"auto: {name} for compute capability {shown}")
    if wanted in _SINCE and capability < _SINCE[wanted]:
        since = ".".join(map(str, _SINCE[wanted]))
        raise ValueError(
            f"precision {wanted} needs compute capability {since}; {torch.cuda.get_device_name(device)} has {shown}"
        )
    return Precision(wanted, "as asked for")
