"""Tokens that really expire: the server is told to forget them after seconds."""

from __future__ import annotations

import datetime
import json
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from projects import ECHO, clear, needs_java, nothing_left, pack_handler

from servekit.domain.deployment import State
from servekit.domain.project import Project
from servekit.domain.server import ServerConfig
from servekit.system import project as project_file
from servekit.system import tokens, torchserve
from servekit.verbs import token as token_verb
from servekit.verbs.down import down
from servekit.verbs.up import UpRequest, up

pytestmark = [pytest.mark.live, needs_java()]

LIFE_S = 15


@pytest.fixture
def short_lived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, State]]:
    """A server whose tokens live for LIFE_S: TorchServe takes a fraction of a minute, servekit.toml does not."""
    pack_handler(tmp_path, "m", ECHO)
    server = ServerConfig(token_expiration_min=LIFE_S / 60)  # type: ignore[arg-type]
    monkeypatch.setattr(project_file, "load", lambda _: Project(server=server))
    try:
        state, _ = up(UpRequest(("m",), "none", "local"), tmp_path, lambda _: None)
        yield tmp_path, state
        down(tmp_path, "default")
        nothing_left(tmp_path)
    finally:
        clear(tmp_path)


def wait_for_expiry(state: State) -> tokens.Token:
    token = tokens.read(state.key_file, "inference")
    assert token.expires is not None
    left = (token.expires - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert left < LIFE_S + 1
    time.sleep(max(0.0, left) + 1.0)
    return token


def test_it_is_renewed_when_it_has_expired_and_only_then(
    short_lived: tuple[Path, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, state = short_lived
    renewed: list[str] = []
    real = tokens._renew

    def counted(of: State, kind: str) -> tokens.Token:
        renewed.append(kind)
        return real(of, kind)

    monkeypatch.setattr(tokens, "_renew", counted)
    old = wait_for_expiry(state)
    refused = requests.post(
        f"{state.inference_url}/predictions/m", data=b"x", headers={"Authorization": f"Bearer {old.key}"}, timeout=10
    )
    assert refused.status_code == 400
    assert "InvalidKeyException" in refused.text
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: torchserve.predict(state, "m", b"x", "text/plain").status, range(6)))
    assert answers == [200] * 6
    assert renewed == ["inference"], "six clients at once, one renewal"

    assert torchserve.predict(state, "m", b"x", "text/plain").status == 200
    assert renewed == ["inference"], "a valid token is left alone"

    wait_for_expiry(state)
    argv = shlex.split(token_verb.curl(project, "default", "inference"))
    header = argv[argv.index("-H") + 1].partition(": ")
    answer = requests.post(argv[-1], data=b"x", headers={header[0]: header[2]}, timeout=10)
    assert answer.status_code == 200, "a printed request works, also after the expiry"
    assert json.loads(answer.text)["gpu"] is None
    assert renewed == ["inference", "inference"]
