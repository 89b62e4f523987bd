"""What can go wrong, said to a person: what is wrong, where, and what to do next.

Each class has its own exit code. The codes are API: scripts branch on them, README lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ServekitError(Exception):
    """An expected failure, shown as a message and a hint; the traceback only with ``--debug``.

    ``detail`` is evidence printed verbatim before the message: a model's own traceback, a tool's output.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail


class ConfigError(ServekitError):
    """servekit.toml or a combination of options is wrong."""

    exit_code = 3


class ModelError(ServekitError):
    """The weights, the class, the handler or the archive cannot be used."""

    exit_code = 4


class HostError(ServekitError):
    """The host lacks something: Java, TorchServe, a Docker engine, an image."""

    exit_code = 5


class GpuError(ServekitError):
    """The GPUs asked for do not exist or cannot be used by the server."""

    exit_code = 6


class ConflictError(ServekitError):
    """Something is in the way: a port in use, a deployment of that name already up."""

    exit_code = 7


class StartError(ServekitError):
    """The server or one of its workers did not start."""

    exit_code = 8


class NotRunningError(ServekitError):
    """No deployment of that name, or its server is gone."""

    exit_code = 9


class RequestError(ServekitError):
    """The server refused a request or failed to answer it."""

    exit_code = 10


class SloError(ServekitError):
    """The load test ran; the service-level objective was not met."""

    exit_code = 11


class StorageError(ServekitError):
    """A disk is full or a folder cannot be written."""

    exit_code = 12


def raise_together(kind: type[ServekitError], problems: Sequence[str], *, hint: str = "") -> None:
    """Raise one ``kind`` that carries every problem, so that a user mends them in one go."""
    if not problems:
        return
    if len(problems) == 1:
        raise kind(problems[0], hint=hint)
    listed = "\n".join(f"  - {problem}" for problem in problems)
    raise kind(f"{len(problems)} problems:\n{listed}", hint=hint)
