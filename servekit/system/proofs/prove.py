"""Run the proof in a child process: on the CPU, or on one GPU that it alone sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from servekit.domain.gpu import Gpu
from servekit.errors import HostError, ModelError
from servekit.probes.proof import PROGRESS
from servekit.system import probe

_PROOF = Path(probe.__file__).resolve().parent.parent / "probes" / "proof"
_TAIL = 40


def run(
    stage: Path,
    request: Mapping[str, Any],
    gpu: Gpu | None,
    progress: Callable[[str], None],
    timeout_s: float = 3600.0,
) -> dict[str, Any]:
    """The result of ``probes/proof`` for the archive laid out in ``stage``. ModelError with what it found.

    The result file lies beside ``stage``, never in it: the handler may write there.
    """
    answer = stage.with_name(f"{stage.name}.result.json")
    full = {**request, "gpu": None if gpu is None else 0, "result": str(answer)}
    process = subprocess.Popen(
        (sys.executable, "-B", str(_PROOF)),
        cwd=stage,
        env=environment(gpu),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    tail = _follow(process, json.dumps(full), progress, timeout_s)
    try:
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    except FileNotFoundError:
        end = probe.end(process.returncode)
        raise ModelError(
            f"{request['handler']} or a module that it imports ended the process that loaded it ({end}).",
            hint="Code that exits or crashes, or needs more memory than there is, ends a worker the same way.",
            detail=tail,
        ) from None
    if result["problem"]:
        raise ModelError(result["problem"], hint=result["hint"], detail=result["detail"])
    return result


def environment(gpu: Gpu | None) -> dict[str, str]:
    """Ours, without what would let the archive import more than itself and site-packages, or use a network hub."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSTARTUP")}
    return {
        **kept,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "" if gpu is None else gpu.uuid,
        "HF_HUB_OFFLINE": "1",
    }


def _follow(process: subprocess.Popen[str], request: str, progress: Callable[[str], None], timeout_s: float) -> str:
    """Pass the child's progress on; return the last lines of everything else it said."""
    assert process.stdin and process.stderr
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    clock = threading.Timer(timeout_s, stop)
    clock.start()
    lines: list[str] = []
    try:
        try:
            process.stdin.write(request)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it died before it read: its exit code says why
        for line in process.stderr:
            if line.startswith(PROGRESS):
                progress(line.removeprefix(PROGRESS).rstrip())
            else:
                lines = [*lines[1 - _TAIL :], line]
        process.wait()
    finally:
        clock.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
    if late.is_set():
        raise HostError(f"The proof did not end within {timeout_s:g} s.", detail="".join(lines))
    return "".join(lines).strip()
