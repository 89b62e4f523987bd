"""TorchServe's HTTP APIs, one owner: health, describe, predict. Tokens are handled here, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests

from servekit.domain.deployment import State
from servekit.errors import NotRunningError, RequestError
from servekit.system import tokens


@dataclass(frozen=True)
class WorkerInfo:
    """One worker as the management API describes it. ``status`` is READY, LOADING, UNLOADING or UNKNOWN."""

    id: str
    pid: int
    status: str


@dataclass(frozen=True)
class ModelInfo:
    """One registered model version as the management API describes it."""

    name: str
    version: str
    min_workers: int
    batch_size: int
    max_batch_delay_ms: int
    workers: tuple[WorkerInfo, ...]
    queue_free: int | None
    pending: int | None

    @property
    def ready(self) -> int:
        return sum(worker.status == "READY" for worker in self.workers)


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    body: bytes


def alive(state: State) -> bool:
    """Whether the inference port answers at all; which is not: whether the models do."""
    try:
        return requests.get(f"{state.inference_url}/ping", headers=_auth(state, "inference"), timeout=2).ok
    except (requests.RequestException, NotRunningError, RequestError):
        return False


def describe(state: State, model: str, *, timeout_s: float = 10.0) -> ModelInfo | None:
    """The model as the server sees it; None while it is not (or no longer) registered."""
    answer = _request(state, "management", "GET", f"{state.management_url}/models/{model}", timeout_s=timeout_s)
    if answer.status_code == 404:
        return None
    if answer.status_code != 200:
        raise RequestError(f"describe {model}: HTTP {answer.status_code}: {answer.text.strip()[:300]}")
    data: dict[str, Any] = answer.json()[0]
    queue = data.get("jobQueueStatus") or {}
    return ModelInfo(
        name=data["modelName"],
        version=data["modelVersion"],
        min_workers=data["minWorkers"],
        batch_size=data["batchSize"],
        max_batch_delay_ms=data["maxBatchDelay"],
        workers=tuple(WorkerInfo(worker["id"], int(worker["pid"]), worker["status"]) for worker in data["workers"]),
        queue_free=queue.get("remainingCapacity"),
        pending=queue.get("pendingRequests"),
    )


def predict(state: State, model: str, body: bytes, content_type: str, *, timeout_s: float = 60.0) -> Answer:
    """POST one body to /predictions/<model>. Any HTTP answer is returned; no answer is an error."""
    answer = _request(
        state,
        "inference",
        "POST",
        f"{state.inference_url}/predictions/{model}",
        body=body,
        content_type=content_type,
        timeout_s=timeout_s,
    )
    return Answer(answer.status_code, answer.headers.get("content-type", ""), answer.content)


def _request(
    state: State,
    kind: str,
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    content_type: str | None = None,
    timeout_s: float,
) -> requests.Response:
    """One request; after InvalidKeyException once more with the key that the file holds by then."""
    headers = _auth(state, kind)
    if content_type:
        headers["Content-Type"] = content_type
    try:
        answer = requests.request(method, url, headers=headers, data=body, timeout=timeout_s)
        if state.auth and answer.status_code == 400 and "InvalidKeyException" in answer.text:
            refused = headers["Authorization"].removeprefix("Bearer ")
            headers["Authorization"] = f"Bearer {tokens.renew_if_expired(state, kind, refused).key}"
            answer = requests.request(method, url, headers=headers, data=body, timeout=timeout_s)
    except requests.Timeout as error:
        raise RequestError(f"{url} did not answer within {timeout_s:g} s.", hint="See: servekit status") from error
    except requests.RequestException as error:
        raise NotRunningError(f"{url} does not answer: {error}.", hint="See: servekit status") from error
    return answer


def _auth(state: State, kind: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.read(state.key_file, kind).key}"} if state.auth else {}
