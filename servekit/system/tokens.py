"""TorchServe's access tokens: read from its key file, renewed only when asked or expired.

Renewing replaces the key at once: every other holder of the old one is locked out. So a client that is
refused first reads the file again, since somebody else may have renewed, and renews only when the file
itself says that the token has expired, under a lock.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from servekit.domain.deployment import State
from servekit.errors import NotRunningError, RequestError

_TORN_S = 1.0
_TORN_POLL_S = 0.02

KINDS = ("inference", "management")


@dataclass(frozen=True)
class Token:
    """One key of TorchServe's key_file.json. ``expires`` is None for the API key, which does not."""

    kind: str
    key: str
    expires: datetime.datetime | None

    @property
    def expired(self) -> bool:
        return self.expires is not None and self.expires <= datetime.datetime.now(datetime.timezone.utc)


def read(key_file: Path, kind: str) -> Token:
    """The ``inference``, ``management`` or ``API`` key as the file holds it now."""
    try:
        entry = _whole(key_file)[kind]
        return Token(kind, str(entry["key"]), _when(entry.get("expiration time")))
    except FileNotFoundError:
        raise NotRunningError(
            f"There is no {key_file}: TorchServe has not written its tokens.", hint="See: servekit status"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{key_file} is not TorchServe's key file: {error}.") from error


def _whole(key_file: Path) -> Any:
    """The file's JSON. TorchServe renews in place, so for a moment it is empty or half-written."""
    deadline = time.monotonic() + _TORN_S
    while True:
        try:
            return json.loads(key_file.read_text(encoding="utf-8"))
        except ValueError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_TORN_POLL_S)


def rotate(state: State, kind: str) -> Token:
    """Ask TorchServe for a new token of ``kind``; the old one stops working at once."""
    with _locked(state):
        return _renew(state, kind)


def renew_if_expired(state: State, kind: str, refused: str) -> Token:
    """A token to try again with after ``refused`` was answered with InvalidKeyException."""
    token = read(state.key_file, kind)
    return token if token.key != refused else current(state, kind)


def current(state: State, kind: str) -> Token:
    """The key of the file; a new one when that has expired, so that what we hand out works."""
    token = read(state.key_file, kind)
    if not token.expired:
        return token
    with _locked(state):
        token = read(state.key_file, kind)  # another of us may have been here meanwhile
        return _renew(state, kind) if token.expired else token


def _renew(state: State, kind: str) -> Token:
    api = read(state.key_file, "API")
    url = f"{state.management_url}/token?type={kind}"
    try:
        answer = requests.get(url, headers={"Authorization": f"Bearer {api.key}"}, timeout=10)
    except requests.RequestException as error:
        raise NotRunningError(f"{url} does not answer: {error}.", hint="See: servekit status") from error
    if answer.status_code != 200:
        raise RequestError(f"TorchServe refused to renew the {kind} token: {answer.text.strip()}")
    return read(state.key_file, kind)


@contextlib.contextmanager
def _locked(state: State) -> Iterator[None]:
    with (Path(state.home) / "token.lock").open("a", encoding="ascii") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _when(text: str | None) -> datetime.datetime | None:
    """Java prints nanoseconds, Python 3.10 reads microseconds."""
    if text is None:
        return None
    seconds, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.datetime.fromisoformat(seconds).replace(tzinfo=datetime.timezone.utc)
    return moment + datetime.timedelta(microseconds=int((fraction + "000000")[:6]))
