"""The workers' log: which models failed to load, how often, and with which traceback."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# "2026-12-01T05:14:22,840 INFO  W-9000-digits_1.0-stdout - text", by config/log4j2.xml
_LINE = re.compile(r"^\S+ \S+\s+W-(?P<port>\d+)-(?P<model>.+)_(?P<version>[^_]+?)-std(?:out|err) - (?P<text>.*)$")
_Worker = tuple[str, str]  # model, port
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_DIED = "Backend worker process died."
# TorchServe catches a RuntimeError or MemoryError of `initialize`, logs it, and dies of one of its own.
_CAUGHT = re.compile(r"(?:Failed to load model|Load model) .*exception ")
_STAND_IN = re.compile(r"RuntimeError: 50[07] - ")


@dataclass(frozen=True)
class Failure:
    """One death of a worker while it loaded a model, with the Python traceback it printed."""

    model: str
    worker: str
    traceback: str

    @property
    def cause(self) -> str:
        """The exception's own line: what two identical failures share."""
        return self.traceback.rstrip().rsplit("\n", 1)[-1]


def failures(log: Path) -> tuple[Failure, ...]:
    """All failures in a model.log so far, oldest first."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ()
    return parse(text.splitlines())


def starts(log: Path) -> dict[tuple[str, str], int]:
    """How often each (model, worker) was started so far."""
    counts: dict[tuple[str, str], int] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            match = _LINE.match(line)
            if match and match["text"].startswith("[PID]"):
                key = (match["model"], match["port"])
                counts[key] = counts.get(key, 0) + 1
    return counts


def parse(lines: Iterable[str]) -> tuple[Failure, ...]:
    """Find worker deaths in log lines; several workers may be interleaved."""
    dying: dict[_Worker, list[str]] = {}
    caught: dict[_Worker, list[str]] = {}
    found: list[Failure] = []
    for line in lines:
        match = _LINE.match(line)
        if not match:
            continue
        worker, text = (match["model"], match["port"]), match["text"]
        if text.startswith(("[PID]", "s_name_part0")):  # the next try begins
            _close(worker, dying, caught, found)
        elif _CAUGHT.match(text):
            caught[worker] = []
        elif _DIED in text:
            dying[worker] = []
        elif worker in dying:
            dying[worker].append(text)
        elif worker in caught:
            caught[worker].append(text)
    for worker in list(dying):
        _close(worker, dying, caught, found)
    return tuple(found)


def _close(
    worker: _Worker, dying: dict[_Worker, list[str]], caught: dict[_Worker, list[str]], found: list[Failure]
) -> None:
    block, earlier = dying.pop(worker, None), caught.pop(worker, None)
    if not block or not _complete(block):
        return
    if earlier and _complete(earlier) and _STAND_IN.match(block[-1]):
        block = earlier
    found.append(Failure(*worker, unmask("\n".join(block))))


def _complete(block: list[str]) -> bool:
    """A traceback has been written to its end: its last line names the exception, flush left."""
    last = next((line for line in reversed(block) if line.strip()), "")
    return bool(last) and not last.startswith((" ", _TRACEBACK))


def unmask(traceback: str) -> str:
    """The user's own exception out of a chain.

    When a handler's import fails, TorchServe tries ``ts.torch_handler.<handler>`` and dies of *that*; the
    true error is the first of the chain.
    """
    parts = re.split(r"\n\s*\n(?:" + "|".join(_CHAINED) + r")[^\n]*\n\s*\n?", traceback)
    if len(parts) > 1 and "ts.torch_handler" in parts[-1].rstrip().rsplit("\n", 1)[-1]:
        return parts[0].strip()
    return traceback.strip()
