"""GPUs and folders -> options of ``docker run``."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from servekit.domain.gpu import GpuPlan
from servekit.domain.plan import Argv


def gpu_options(gpus: GpuPlan) -> Argv:
    """Which GPUs the engine passes in, and how CUDA numbers them there.

    Inside, the passed GPUs are numbered anew in the order of their PCI addresses, whatever order was asked
    for. The mask restores the plan's order. TorchServe counts GPUs by that mask and then needs no
    nvidia-smi in the image.
    """
    if not gpus.count:
        # An engine whose default runtime is NVIDIA's passes GPUs by itself; this server was promised none.
        return ("--env", "NVIDIA_VISIBLE_DEVICES=void")
    by_address = sorted(gpu.index for gpu in gpus.gpus)
    mask = ",".join(str(by_address.index(gpu.index)) for gpu in gpus.gpus)
    return (
        # Quoted inside: the option's parser splits at commas.
        *("--gpus", f'"device={gpus.visible_devices}"'),
        *("--env", "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        *("--env", f"CUDA_VISIBLE_DEVICES={mask}"),
    )


def mount_option(source: Path, target: Path, *, read_only: bool) -> Argv:
    """A bind mount. Not ``--volume``: that splits at colons and creates a missing source as root."""
    fields = ["type=bind", f"source={source}", f"target={target}"]
    if read_only:
        fields.append("readonly")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)  # the option is a line of CSV: commas need quotes
    return ("--mount", line.getvalue())
