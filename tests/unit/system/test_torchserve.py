from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests
from nouns import state

from servekit.domain.deployment import State
from servekit.errors import NotRunningError, RequestError
from servekit.system import torchserve
from servekit.system.torchserve import Answer, ModelInfo, WorkerInfo

INVALID = json.dumps({"code": 400, "type": "InvalidKeyException", "message": "Token Authorization failed."})


def response(status: int, text: str = "", content_type: str = "application/json") -> requests.Response:
    made = requests.Response()
    made.status_code, made._content = status, text.encode()
    made.headers["content-type"] = content_type
    return made


class Wire:
    """Answers in turn; remembers (method, url, headers, body) of each request."""

    def __init__(self, *answers: requests.Response | Exception) -> None:
        self.answers, self.seen = list(answers), list[tuple[str, str, dict[str, str], Any]]()

    def request(self, method: str, url: str, *, headers: dict[str, str], data: Any, timeout: float) -> Any:
        self.seen.append((method, url, dict(headers), data))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def up(tmp_path: Path) -> State:
    write_key(tmp_path, "one")
    return state(tmp_path)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch):
    def connect(*answers: requests.Response | Exception) -> Wire:
        made = Wire(*answers)
        monkeypatch.setattr(requests, "request", made.request)
        return made

    return connect


def write_key(home: Path, key: str) -> None:
    keys = {
        kind: {"key": f"{key}-{kind}", "expiration time": "2999-01-01T00:00:00Z"}
        for kind in ("inference", "management")
    }
    (home / "key_file.json").write_text(json.dumps(keys))


def test_predict_sends_the_body_with_token_and_type(up: State, wire) -> None:
    line = wire(response(200, "[1]"))
    assert torchserve.predict(up, "digits", b"\x00", "image/png") == Answer(200, "application/json", b"[1]")
    headers = {"Authorization": "Bearer one-inference", "Content-Type": "image/png"}
    assert line.seen == [("POST", "http://127.0.0.1:8090/predictions/digits", headers, b"\x00")]


def test_without_authorization_no_token_is_read(tmp_path: Path, wire) -> None:
    line = wire(response(400, INVALID))
    assert torchserve.predict(state(tmp_path, auth=False), "digits", b"1", "text/plain").status == 400
    assert line.seen[0][2] == {"Content-Type": "text/plain"}


def test_a_key_that_was_replaced_meanwhile_is_read_again(up: State, wire, monkeypatch: pytest.MonkeyPatch) -> None:
    line = wire(response(400, INVALID), response(200, "ok"))
    send = line.request

    def replaced_in_between(*args: Any, **kwargs: Any) -> Any:
        answer = send(*args, **kwargs)
        write_key(Path(up.home), "two")
        return answer

    monkeypatch.setattr(requests, "request", replaced_in_between)
    assert torchserve.predict(up, "digits", b"1", "text/plain").body == b"ok"
    assert [headers["Authorization"] for _, _, headers, _ in line.seen] == [
        "Bearer one-inference",
        "Bearer two-inference",
    ]
    assert [body for *_, body in line.seen] == [b"1", b"1"]


def test_a_key_refused_twice_is_not_tried_again(up: State, wire) -> None:
    line = wire(response(400, INVALID), response(400, INVALID))
    assert torchserve.predict(up, "digits", b"1", "text/plain").status == 400
    assert len(line.seen) == 2


@pytest.mark.parametrize("answer", [response(400, "bad input"), response(500, INVALID), response(503)])
def test_other_refusals_are_answers(up: State, wire, answer: requests.Response) -> None:
    line = wire(answer)
    assert torchserve.predict(up, "digits", b"1", "text/plain").status == answer.status_code
    assert len(line.seen) == 1


def test_no_answer_is_an_error(up: State, wire) -> None:
    wire(requests.ReadTimeout())
    with pytest.raises(RequestError, match=r"did not answer within 60 s\."):
        torchserve.predict(up, "digits", b"1", "text/plain")
    wire(requests.ConnectionError("refused"))
    with pytest.raises(NotRunningError, match="does not answer: refused"):
        torchserve.predict(up, "digits", b"1", "text/plain")


def test_describe(up: State, wire) -> None:
    described = [
        {
            "modelName": "digits",
            "modelVersion": "1.0",
            "minWorkers": 2,
            "maxWorkers": 2,
            "batchSize": 8,
            "maxBatchDelay": 5,
            "workers": [
                {"id": "9000", "status": "READY", "pid": 11, "gpu": True},
                {"id": "9001", "status": "UNLOADING", "pid": -1, "gpu": True},
            ],
            "jobQueueStatus": {"remainingCapacity": 100, "pendingRequests": 0},
        }
    ]
    line = wire(response(200, json.dumps(described)))
    info = torchserve.describe(up, "digits")
    workers = (WorkerInfo("9000", 11, "READY"), WorkerInfo("9001", -1, "UNLOADING"))
    assert info == ModelInfo("digits", "1.0", 2, 8, 5, workers, 100, 0)
    assert info.ready == 1
    assert line.seen[0][:3] == (
        *("GET", "http://127.0.0.1:8091/models/digits"),
        {"Authorization": "Bearer one-management"},
    )


def test_describe_what_is_not_registered(up: State, wire) -> None:
    wire(response(404), response(500, "broken\n"))
    assert torchserve.describe(up, "digits") is None
    with pytest.raises(RequestError, match="describe digits: HTTP 500: broken"):
        torchserve.describe(up, "digits")


def test_alive(up: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "get", lambda url, **_: response(200 if url.endswith(":8090/ping") else 404))
    assert torchserve.alive(up)
    monkeypatch.setattr(requests, "get", lambda *_, **__: response(500))
    assert not torchserve.alive(up)
    (Path(up.home) / "key_file.json").unlink()
    assert not torchserve.alive(up)
