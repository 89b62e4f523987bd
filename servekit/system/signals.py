"""Interruptions: made into an exception while work goes on, held back while it is being undone."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_on_termination() -> None:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: through its clean-up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Ignore interruptions in this block: a clean-up that is cut short leaves something behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
