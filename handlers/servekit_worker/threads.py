"""CPU threads of one worker, so that N workers do not each take every core."""

from __future__ import annotations

import logging

import torch

log = logging.getLogger(__name__)


def bound(threads: int | None) -> int:
    """Let operations use ``threads`` threads (None: leave torch's choice); return the number in force."""
    if threads is not None:
        torch.set_num_threads(threads)
        # One: a batch is answered by one forward pass, and a second pool would only add to the bound.
        if torch.get_num_interop_threads() != 1:
            try:
                torch.set_num_interop_threads(1)
            except RuntimeError as error:  # parallel work at import time of the user's module
                log.warning("servekit: inter-op threads stay at torch's default: %s", error)
    return int(torch.get_num_threads())
