"""Real Locust: against the real TorchServe, and against a server of ours whose delays are scripted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from projects import argv, clear, environment, needs_java, pack_tensor, servekit

from servekit.domain.load import LoadStats, summarise
from servekit.system import locust

pytestmark = pytest.mark.live

Answer = Callable[[str], tuple[int, bytes]]


class Scripted:
    """A keep-alive HTTP server on a free port; ``answer(token)`` gives status and body, and may sleep."""

    def __init__(self, answer: Answer) -> None:
        self.closed, scripted = False, self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                if scripted.closed:  # also on the connections that are open
                    self.close_connection = True
                    return
                self.rfile.read(int(self.headers["Content-Length"]))
                status, body = answer(self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.closed = True
        self.server.shutdown()
        self.server.server_close()


def load(url: str, folder: Path, seconds: float, key_file: Path | None = None, users: int = 4) -> locust.Outcome:
    payload = folder / "body.txt"
    payload.write_text("hello")
    job = locust.LoadJob(
        url, "/predictions/m", (locust.Payload(payload, "text/plain"),), key_file, users, seconds, timeout_s=5
    )
    records = folder / "records"
    records.mkdir()
    return locust.run(job, records, lambda _now, _fresh: None)


def stats(outcome: locust.Outcome, warmup_s: float = 0) -> LoadStats:
    return summarise(outcome.records, warmup_s, outcome.end_s)


def test_a_planted_stall_of_two_seconds_is_seen(tmp_path: Path) -> None:
    stall: list[float] = []
    lock = threading.Lock()

    def answer(_: str) -> tuple[int, bytes]:
        with lock:
            first = not stall
            if first:
                stall.append(time.monotonic())
        if time.monotonic() - stall[0] > 3 and len(stall) == 1:
            with lock:
                if len(stall) == 1:
                    stall.append(time.monotonic())
                    time.sleep(2)  # under the lock: everybody waits
        time.sleep(0.005)
        with lock:
            return 200, b"ok"

    server = Scripted(answer)
    try:
        outcome = load(server.url, tmp_path, 8)
    finally:
        server.close()
    found = stats(outcome, warmup_s=1)
    assert found.latency is not None
    assert not found.failures
    assert found.latency.value("p50") < 100
    worst = max(bucket.p99 or 0 for bucket in found.series)
    assert 1900 < worst < 4000, "the plot of p99 shows the stall"
    assert min(bucket.throughput for bucket in found.series[1:-1]) < found.throughput / 4
    assert sum(record.start_s < 1 for record in outcome.records) > 0, "there was a warm-up to leave out"
    assert found.sent == sum(1 <= record.start_s < outcome.end_s for record in outcome.records)


def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    key_file = tmp_path / "key_file.json"
    key_file.write_text('{"inference": {"key": "old"}}')
    wanted = ["old"]
    began = time.monotonic()

    def answer(authorization: str) -> tuple[int, bytes]:
        if wanted == ["old"] and time.monotonic() - began > 6:
            wanted[0] = "new"
            key_file.write_text('{"inference": {"key": "new"}}')
        time.sleep(0.01)
        if authorization == f"Bearer {wanted[0]}":
            return 200, b"ok"
        return 400, b'{"code": 400, "type": "InvalidKeyException"}'

    server = Scripted(answer)
    try:
        outcome = load(server.url, tmp_path, 9, key_file)
    finally:
        server.close()
    assert wanted == ["new"]
    assert {record.status for record in outcome.records} == {200}


def test_a_server_that_goes_away_ends_in_time_with_the_truth(tmp_path: Path) -> None:
    server = Scripted(lambda _: (200, b"ok"))
    timer = threading.Timer(5, server.close)
    timer.start()
    began = time.monotonic()
    outcome = load(server.url, tmp_path, 8)
    timer.join()
    assert time.monotonic() - began < 40
    found = stats(outcome)
    assert found.answered > 0
    assert sum(failure.count for failure in found.failures) > 0
    assert {failure.status for failure in found.failures} == {0}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("load")
    pack_tensor(folder)
    (folder / "item.json").write_text("[1, 2, 3]")
    done = servekit(folder, "up", "net", "--runtime", "local", "--gpus", "none")
    assert done.returncode == 0, done.stderr
    yield folder
    clear(folder)


@needs_java()
def test_the_report_of_a_real_server(project: Path) -> None:
    words = (
        "loadtest",
        "--model",
        "net",
        "--payload",
        "item.json",
        "--users",
        "4",
        "--duration",
        "4s",
        "--warmup",
        "1s",
    )
    done = servekit(project, *words, "--slo", "p99<10s,errors<1%", "--out", "good")
    assert done.returncode == 0, done.stderr
    assert "requests/s" in done.stdout
    report = json.loads((project / "good" / "report.json").read_text())
    measured = report["stats"]
    assert report["passed"] is True
    assert measured["sent"] == measured["answered"] + sum(f["count"] for f in measured["failures"])
    assert measured["latency"]["count"] == measured["answered"] > 50
    assert report["gpus"] == [] and "CPU" in report["gpu_note"]
    assert report["server"]["Precision"].startswith("fp32")
    page = (project / "good" / "report.html").read_text()
    assert not re.findall(r"""(?:src|href)\s*=""", page)
    missed = servekit(project, *words, "--slo", "p50<1us", "--out", "missed")
    assert missed.returncode == 11
    assert "The objective was missed: p50<1us" in missed.stderr
    assert (project / "missed" / "report.html").exists(), "the report is written all the same"


@needs_java()
def test_ctrl_c_writes_the_report_of_what_there_is(project: Path) -> None:
    words = (
        "loadtest",
        "--model",
        "net",
        "--payload",
        "item.json",
        "--duration",
        "60s",
        "--warmup",
        "1s",
        "--out",
        "cut",
    )
    child = subprocess.Popen(
        argv(*words), cwd=project, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(8)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "cut/report.html" in out
    report = json.loads((project / "cut" / "report.json").read_text())
    assert report["interrupted"] is True
    assert report["elapsed_s"] < 10
    assert report["stats"]["answered"] > 0
    assert report["stats"]["failures"] == [], "what we cut off is no failure of the server"


@needs_java()
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--model", "net", "--payload", "item.json", "--slo", "p99<"), 3),
        (("--model", "other", "--payload", "item.json"), 9),
        (("--model", "net", "--payload", "nothing.png"), 3),
        (("--model", "net", "--payload", "net.py"), 10),
    ],
)
def test_what_cannot_be_tested_sends_no_load(project: Path, words: tuple[str, ...], code: int) -> None:
    done = servekit(project, "loadtest", *words, "--out", "none")
    assert done.returncode == code, done.stderr
    assert not (project / "none" / "report.json").exists()
