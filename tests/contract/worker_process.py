"""TorchServe's real Python worker, without Java: this module plays the frontend's side of the socket.

The worker is started as the frontend starts it: cwd and the end of PYTHONPATH are the model's folder. One
thing differs: importing servekit fails in it, as it does in a container that holds only the archive.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANDLERS = Path(__file__).resolve().parents[2] / "handlers"
TS = Path(importlib.util.find_spec("ts").origin).parent  # type: ignore[union-attr, arg-type]

_NO_SERVEKIT = """
import sys
class NoServekit:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "servekit":
            raise ModuleNotFoundError("servekit is not importable in a worker", name=name)
sys.meta_path.insert(0, NoServekit())
"""


def lay_out(folder: Path, handler: str, section: Mapping[str, Any], files: Mapping[str, str | bytes]) -> Path:
    """Make a model folder as a deployment has it: a folder of links to the unpacked archive's files."""
    cache, served = folder / "cache", folder / "served"
    shutil.copytree(HANDLERS, cache, ignore=shutil.ignore_patterns("__pycache__"))
    manifest = {"model": {"modelName": "m", "handler": handler, "configFile": "model-config.yaml"}}
    texts = {
        "MAR-INF/MANIFEST.json": json.dumps(manifest),
        "model-config.yaml": json.dumps({"handler": section}),
    }
    for name, content in {**texts, **files}.items():
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for source in sorted(path for path in cache.rglob("*") if path.is_file()):
        link = served / source.relative_to(cache)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source)
    return served


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_refuse)


@dataclass
class Worker:
    """A connected worker. ``output`` is all it has printed so far."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    log: Path
    reports: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def load(self, model_dir: Path, handler: str, batch_size: int, gpu: int = -1) -> int:
        """Send the load command; return its code, or -1 when the worker died of it."""
        name, path = _field(b"m"), _field(os.fsencode(model_dir))
        tail = _field(handler.encode()) + _int(gpu) + _field(b"") + struct.pack("!?", True)
        self.connection.sendall(b"L" + name + path + _int(batch_size) + tail)
        try:
            code, _ = self._int(), self._field()
        except EOFError:
            self.process.wait(timeout=60)
            return -1
        assert self._int() == -1
        return code

    def predict(self, *requests: tuple[bytes, str], headers: Mapping[str, str] | None = None) -> list[Answer]:
        """Send one batch of (body, content type); return an answer a request, in order."""
        message = b"I"
        for index, (body, content_type) in enumerate(requests):
            message += _field(str(index).encode())
            message += b"".join(_field(k.encode()) + _field(v.encode()) for k, v in (headers or {}).items())
            message += _int(-1) + _field(b"body") + _field(content_type.encode()) + _field(body) + _int(-1)
        self.connection.sendall(message + _int(-1))
        self._int(), self._field()
        answers = []
        for index in range(len(requests)):
            assert self._field() == str(index).encode()
            content_type, status, _ = self._field().decode(), self._int(), self._field()
            for _ in range(self._int()):
                self._field(), self._field()
            answers.append(Answer(status, content_type, self._field()))
        assert self._int() == -1
        return answers

    def _int(self) -> int:
        return int(struct.unpack("!i", self._exactly(4))[0])

    def _field(self) -> bytes:
        return self._exactly(self._int())

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.connection.recv(count - len(data))
            if not part:
                raise EOFError("the worker closed its socket")
            data += part
        return data


@contextlib.contextmanager
def start(model_dir: Path) -> Iterator[Worker]:
    """Start the worker with ``model_dir`` as the frontend would and connect to it."""
    folder = Path(tempfile.mkdtemp(prefix="wk-"))  # short: a socket's path holds 108 bytes
    (folder / "sitecustomize.py").write_text(_NO_SERVEKIT)
    log, sock, reports = folder / "log", folder / "s.9000", folder / "reports"
    argv: Sequence[str] = (
        *(sys.executable, "-u", str(TS / "model_service_worker.py"), "--sock-type", "unix"),
        *("--sock-name", str(sock), "--metrics-config", str(TS / "configs" / "metrics.yaml")),
    )
    env = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{model_dir}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SERVEKIT_WORKER_REPORTS": str(reports),
    }
    with log.open("wb") as stream:
        process = subprocess.Popen(argv, cwd=model_dir, env=env, stdout=stream, stderr=subprocess.STDOUT)
    try:
        with _connect(process, sock, log) as connection:
            yield Worker(process, connection, log, reports)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _connect(process: subprocess.Popen[bytes], path: Path, log: Path) -> socket.socket:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(120)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            time.sleep(0.05)
        else:
            return connection
    raise AssertionError(f"the worker opened no socket:\n{log.read_text()}")


def _int(value: int) -> bytes:
    return struct.pack("!i", value)


def _field(value: bytes) -> bytes:
    return _int(len(value)) + value


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")
