"""Run a script of servekit/probes in a child process and read its one line of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servekit.domain.gpu import GpuPlan
from servekit.errors import GpuError, HostError

_PROBES = Path(__file__).resolve().parent.parent / "probes"


class ProbeDiedError(HostError):
    """The probe ended without its line of JSON. ``end`` says how: an exit code or a signal's name."""

    def __init__(self, name: str, end: str, detail: str) -> None:
        super().__init__(f"The {name} probe ended with {end} before it could answer.", detail=detail)
        self.end = end


def run(
    name: str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    request: Mapping[str, Any] | None = None,
    timeout_s: float = 300.0,
) -> dict[str, Any]:
    """The JSON that ``probes/<name>.py`` prints last. HostError with its output when it prints none."""
    argv = (sys.executable, "-B", str(_PROBES / f"{name}.py"))
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            input=json.dumps(request or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except OSError as error:
        raise HostError(
            f"{sys.executable} cannot be run for the {name} probe: {error.strerror}.",
            hint="This user must be able to run the Python that servekit runs under.",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HostError(f"The {name} probe did not end within {timeout_s:g} s.") from error
    except (ValueError, IndexError) as error:
        raise ProbeDiedError(name, end(done.returncode), done.stderr.strip()) from error
    return result


def end(code: int) -> str:
    """subprocess's return code as a person says it."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def check_cuda(gpus: GpuPlan) -> None:
    """Raise GpuError unless torch computes on each promised GPU under the server's own device mask."""
    env = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpus.visible_devices}
    judge_cuda(run("cuda", env=env), gpus)


def judge_cuda(result: Mapping[str, Any], gpus: GpuPlan) -> None:
    """Compare what the cuda probe saw with the plan. Raises GpuError."""
    hint = (
        "Install a torch build for this driver's CUDA in the environment that serves, "
        "or serve on the CPU with --gpus none."
    )
    if result["error"]:
        raise GpuError(f"torch {result['torch']} cannot use the GPU: {result['error']}.", hint=hint)
    devices = result["devices"]
    if len(devices) != gpus.count:
        raise GpuError(f"torch sees {len(devices)} GPUs where {gpus.count} were promised.", hint=hint)
    for ordinal, device in enumerate(devices):
        gpu = gpus.physical(ordinal)
        if device["error"]:
            raise GpuError(f"{gpu}: a test computation failed: {device['error']}.", hint=hint)
        if device["uuid"] and gpu.uuid and device["uuid"].lower() != gpu.uuid.lower():
            raise GpuError(f"cuda:{ordinal} is {device['uuid']}, but {gpu} is {gpu.uuid}.", hint=hint)
