"""The load generator, run by Locust's own process; servekit starts it and reads what it writes.

A closed loop: each user sends its next request when the last one was answered. Every request becomes one
record of full resolution, since Locust's own percentiles are rounded to two digits from 100 ms on. Times
are CLOCK_MONOTONIC, which all processes of a host share, so that records and GPU samples have one axis.

$SERVEKIT_LOADTEST names a JSON file::

    {"path": "/predictions/digits", "payloads": [{"file": "seven.png", "content_type": "image/png"}],
     "key_file": "/.../key_file.json" | null, "records": "/.../folder", "timeout_s": 60}

Into ``records`` each process writes ``<pid>.records`` (``RECORD``), ``<pid>.errors`` (a JSON text a line;
record.error is its number, from 1) and ``<pid>.started`` (monotonic nanoseconds).
"""

import itertools
import json
import os
import struct
import time
from pathlib import Path

import gevent
from locust import FastHttpUser, constant, events, task

# start (monotonic ns), latency (ns), HTTP status (0: no answer), error number (0: none), bytes received
RECORD = struct.Struct("<QQHHI")
FLUSH_S = 0.5
TORN_S = 1.0
OTHER_ERROR = 65535

plan = json.loads(Path(os.environ["SERVEKIT_LOADTEST"]).read_text(encoding="utf-8"))
payloads = [(Path(p["file"]).read_bytes(), {"Content-Type": p["content_type"]}) for p in plan["payloads"]]


class Recorder:
    """Buffers records; one file a process, opened after Locust has forked."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.errors: dict[str, int] = {}
        self.open: dict[int, int] = {}
        self.folder = Path(plan["records"])

    def start(self) -> None:
        base = self.folder / str(os.getpid())
        self.file = base.with_suffix(".records").open("ab", buffering=0)
        self.error_file = base.with_suffix(".errors").open("a", encoding="utf-8")
        base.with_suffix(".started").write_text(str(time.monotonic_ns()), encoding="ascii")
        gevent.spawn(self.flush_forever)

    def add(self, started: int, ended: int, status: int, error: str, size: int) -> None:
        self.buffer += RECORD.pack(started, ended - started, status, self.error_number(error), min(size, 2**32 - 1))

    def error_number(self, text: str) -> int:
        if not text:
            return 0
        if text not in self.errors and len(self.errors) < OTHER_ERROR - 1:
            self.errors[text] = len(self.errors) + 1
            self.error_file.write(json.dumps(text) + "\n")
            self.error_file.flush()
        return self.errors.get(text, OTHER_ERROR)

    def flush_forever(self) -> None:
        while True:
            gevent.sleep(FLUSH_S)
            self.flush()

    def flush(self) -> None:
        block, self.buffer = self.buffer, bytearray()
        self.file.write(block)

    def stop(self) -> None:
        """What is still unanswered was not lost: it took at least until now."""
        now = time.monotonic_ns()
        for started in self.open.values():
            self.add(started, now, 0, "no answer when the test ended", 0)
        self.open.clear()
        self.flush()


recorder = Recorder()
turns = itertools.count()


@events.test_start.add_listener
def _start(environment, **_):
    if type(environment.runner).__name__ != "MasterRunner":  # the master of several processes sends nothing
        recorder.start()


@events.quitting.add_listener
def _stop(environment, **_):
    if type(environment.runner).__name__ != "MasterRunner":
        recorder.stop()


class Token:
    """The inference token, read again when the server refuses it: somebody may have rotated it."""

    def __init__(self, key_file: str | None) -> None:
        self.file = key_file
        self.headers: dict[str, str] = {}
        self.read()

    def read(self) -> None:
        if self.file:
            key = self._whole(Path(self.file))["inference"]["key"]
            self.headers = {"Authorization": f"Bearer {key}"}

    def _whole(self, path: Path) -> dict:
        """The file's JSON. TorchServe renews in place, so for a moment it is empty or half-written."""
        deadline = time.monotonic() + TORN_S
        while True:
            try:
                return json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                if time.monotonic() > deadline:
                    raise
                gevent.sleep(0.02)


token = Token(plan["key_file"])


class Client(FastHttpUser):
    wait_time = constant(0)
    network_timeout = plan["timeout_s"]
    connection_timeout = 10.0
    insecure = False

    @task
    def predict(self) -> None:
        body, headers = payloads[next(turns) % len(payloads)]
        started = time.monotonic_ns()
        recorder.open[id(self)] = started
        response = self.send(body, headers)
        if response.status_code == 400 and token.file and b"InvalidKeyException" in (response.content or b""):
            token.read()
            response = self.send(body, headers)
        ended = time.monotonic_ns()
        recorder.open.pop(id(self), None)
        content = response.content or b""
        recorder.add(started, ended, response.status_code, problem(response, content), len(content))
        if response.status_code == 0:
            gevent.sleep(0.1)  # a server that is gone answers in microseconds: do not spin

    def send(self, body: bytes, headers: dict[str, str]):
        with self.client.post(
            plan["path"], data=body, headers={**headers, **token.headers}, name="predict", catch_response=True
        ) as response:
            response.success()  # success and failure are ours to tell, from the record
        return response


def problem(response, content: bytes) -> str:
    """Empty for a good answer; else what the server said, shortened."""
    if response.status_code == 200:
        return ""
    if response.status_code == 0:
        return f"{type(response.error).__name__}: {response.error}"[:200]
    return " ".join(content.decode("utf-8", "replace").split())[:200] or f"HTTP {response.status_code}, no body"
