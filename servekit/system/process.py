"""Server processes of this host: found by the label on their command line, stopped with their workers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path

import psutil


def servers(home: Path) -> tuple[psutil.Process, ...]:
    """The TorchServe frontends of the deployment in ``home``.

    The label (``-Dservekit.home=``) is the truth, not a pid in a file: a pid can be reused, and a start
    that was killed half-way leaves no file.
    """
    label = f"-Dservekit.home={home}"
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if label in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return tuple(found)


def labelled(deployments: Path) -> tuple[Path, ...]:
    """The homes directly below ``deployments`` whose frontends run, also those whose folder was deleted."""
    prefix = "-Dservekit.home="
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            for part in process.cmdline():
                if part.startswith(prefix) and Path(part.removeprefix(prefix)).parent == deployments:
                    found.add(Path(part.removeprefix(prefix)))
    return tuple(sorted(found))


def stop(home: Path, *, grace_s: float = 10.0) -> bool:
    """End the deployment's frontends and workers; True when there was something to end.

    The frontend is asked first, then everything that is left of its session is killed: a worker whose
    frontend was killed would otherwise live on with its GPU memory.
    """
    frontends = servers(home)
    everyone = _family(frontends) + _orphans(home)
    for frontend in frontends:
        with contextlib.suppress(psutil.Error):
            frontend.send_signal(signal.SIGTERM)
    psutil.wait_procs(frontends, timeout=grace_s)
    everyone += _orphans(home)
    for process in everyone:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(everyone, timeout=grace_s)
    return bool(everyone)


def _family(frontends: Sequence[psutil.Process]) -> list[psutil.Process]:
    processes: list[psutil.Process] = []
    for frontend in frontends:
        with contextlib.suppress(psutil.Error):
            processes += [frontend, *frontend.children(recursive=True)]
    return processes


def _orphans(home: Path) -> list[psutil.Process]:
    """Workers of ``home`` whose frontend is gone: they inherit its SERVEKIT_WORKER_REPORTS."""
    reports = str(home / "workers")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_worker = any(part.endswith("model_service_worker.py") for part in process.cmdline())
            if is_worker and process.environ().get("SERVEKIT_WORKER_REPORTS") == reports:
                found.append(process)
    return found


def port_owner(port: int) -> str:
    """Who listens on a TCP port, for an error message: ``nginx (pid 42)``, or what can be said."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    break
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another process"
