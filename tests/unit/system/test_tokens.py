from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from nouns import state

from servekit.domain.deployment import State
from servekit.errors import NotRunningError, RequestError
from servekit.system import tokens

UTC = datetime.timezone.utc
PAST, FUTURE = "2001-01-01T00:00:00.123456789Z", "2999-01-01T00:00:00.1Z"


@pytest.fixture
def up(tmp_path: Path) -> State:
    write(tmp_path, inference="old", expires=PAST)
    return state(tmp_path)


def write(home: Path, *, inference: str, expires: str) -> None:
    """As TorchServe writes it."""
    keys = {
        "management": {"key": "man", "expiration time": FUTURE},
        "inference": {"key": inference, "expiration time": expires},
        "API": {"key": "api"},
    }
    (home / "key_file.json").write_text(json.dumps(keys))


@pytest.fixture
def renewals(up: State, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """TorchServe's token API: each call writes the next key; the list holds what was asked."""
    asked: list[tuple[str, Any]] = []

    def get(url: str, *, headers: dict[str, str], timeout: float) -> requests.Response:
        asked.append((url, headers["Authorization"]))
        write(Path(up.home), inference=f"new{len(asked)}", expires=FUTURE)
        return answer(200)

    monkeypatch.setattr(requests, "get", get)
    return asked


def answer(status: int, text: str = "") -> requests.Response:
    response = requests.Response()
    response.status_code, response._content = status, text.encode()
    return response


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2026-12-01T05:14:22.840123456Z", 840_123),
        ("2026-12-01T05:14:22.000000999Z", 0),
        ("2026-12-01T05:14:22.84Z", 840_000),
        ("2026-12-01T05:14:22Z", 0),
    ],
)
def test_javas_times(tmp_path: Path, text: str, microsecond: int) -> None:
    write(tmp_path, inference="k", expires=text)
    token = tokens.read(tmp_path / "key_file.json", "inference")
    assert token.key == "k"
    assert token.expires == datetime.datetime(2026, 12, 1, 5, 14, 22, microsecond, tzinfo=UTC)


def test_expired_or_not(up: State) -> None:
    assert tokens.read(up.key_file, "inference").expired
    assert not tokens.read(up.key_file, "management").expired
    api = tokens.read(up.key_file, "API")
    assert (api.expires, api.expired) == (None, False)


def test_no_file_means_no_server(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError, match="has not written its tokens"):
        tokens.read(tmp_path / "key_file.json", "inference")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"inference": {}}', '{"inference": 1}', '{"inference": {"key": "k", "expiration time": "soon"}}'],
)
def test_what_is_no_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(tokens, "_TORN_S", -1.0)
    (tmp_path / "key_file.json").write_text(text)
    with pytest.raises(RequestError, match="is not TorchServe's key file"):
        tokens.read(tmp_path / "key_file.json", "inference")


def test_a_file_that_is_being_rewritten_is_read_again(up: State, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = up.key_file.read_text()
    stages = iter([whole[:20], whole])
    up.key_file.write_text("")
    monkeypatch.setattr(tokens.time, "sleep", lambda _: up.key_file.write_text(next(stages)))
    assert tokens.read(up.key_file, "inference").key == "old"
    assert next(stages, None) is None


def test_what_is_handed_out_works(up: State, renewals: list[Any]) -> None:
    assert tokens.current(up, "inference").key == "new1"
    assert tokens.current(up, "inference").key == "new1"
    assert len(renewals) == 1, "a valid one is left alone"


def test_a_refused_key_that_the_file_no_longer_holds_is_not_renewed(up: State, renewals: list[Any]) -> None:
    assert tokens.renew_if_expired(up, "inference", "older").key == "old"
    assert renewals == []


def test_a_refused_key_that_has_not_expired_is_not_renewed(up: State, renewals: list[Any]) -> None:
    write(Path(up.home), inference="old", expires=FUTURE)
    assert tokens.renew_if_expired(up, "inference", "old").key == "old"
    assert renewals == []


def test_an_expired_key_is_renewed_once_with_the_api_key(up: State, renewals: list[Any]) -> None:
    assert tokens.renew_if_expired(up, "inference", "old").key == "new1"
    assert renewals == [(f"{up.management_url}/token?type=inference", "Bearer api")]


def test_who_waited_for_the_lock_takes_the_others_key(
    up: State, renewals: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = tokens._locked

    def somebody_else_first(one: State) -> Any:
        write(Path(one.home), inference="theirs", expires=FUTURE)
        return real(one)

    monkeypatch.setattr(tokens, "_locked", somebody_else_first)
    assert tokens.renew_if_expired(up, "inference", "old").key == "theirs"
    assert renewals == []


def test_rotate_asks_always(up: State, renewals: list[Any]) -> None:
    write(Path(up.home), inference="old", expires=FUTURE)
    assert tokens.rotate(up, "inference").key == "new1"
    assert len(renewals) == 1


def test_a_renewal_that_fails(up: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "get", lambda *_, **__: answer(400, "no such type\n"))
    with pytest.raises(RequestError, match="refused to renew the inference token: no such type"):
        tokens.rotate(up, "inference")

    def unreachable(*_: Any, **__: Any) -> None:
        raise requests.ConnectionError("refused")

    monkeypatch.setattr(requests, "get", unreachable)
    with pytest.raises(NotRunningError, match="does not answer"):
        tokens.rotate(up, "inference")
