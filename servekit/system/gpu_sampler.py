"""Looks at GPUs several times a second while something else runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from servekit.domain.gpu_load import GpuSample
from servekit.system import nvml


class GpuSampler:
    """``with GpuSampler(uuids) as sampler: ...``, then ``sampler.samples``; times are CLOCK_MONOTONIC.

    ``problem`` says why sampling ended early, if it did: a report must not show a gap as zero.
    """

    def __init__(self, uuids: Sequence[str], hz: float = 5.0) -> None:
        self.samples: list[GpuSample] = []
        self.problem: str | None = None
        self._uuids, self._period = tuple(uuids), 1.0 / hz
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)

    def __enter__(self) -> GpuSampler:
        if self._uuids:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            with nvml.reader(self._uuids) as read:
                due = time.monotonic()
                while not self._stop.wait(max(0.0, due - time.monotonic())):
                    self.samples += read()
                    due = max(due + self._period, time.monotonic() - self._period)
        except Exception as error:  # a thread has nobody to raise to: the report says it
            self.problem = str(error)
