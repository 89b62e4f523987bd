"""Intra-op threads of a worker: the default, every core in every worker, stops a busy host altogether."""

from __future__ import annotations

import contextlib

import torch


def bound(count: int) -> None:
    torch.set_num_threads(max(1, count))
    with contextlib.suppress(RuntimeError):  # may be set only once in a process
        torch.set_num_interop_threads(1)
