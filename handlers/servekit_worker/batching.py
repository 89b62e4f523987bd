"""One bad item answers for itself; the others are served together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class ItemError(Exception):
    """What is wrong with one request of a batch: an HTTP status and words for the client."""

    status: int
    message: str

    def body(self) -> dict[str, Any]:
        """The shape of TorchServe's own errors."""
        return {"code": self.status, "type": "ItemError", "message": self.message}


def request_body(row: dict[str, Any]) -> Any:
    """The payload of one request: ``body`` for a POSTed body, ``data`` for a form field."""
    payload = row.get("body")
    if payload is None:
        payload = row.get("data")
    if payload is None or (isinstance(payload, (bytes, bytearray, str)) and not payload):
        raise ItemError(400, "the request has no body")
    return payload


def each(function: Callable[[Any], T], items: Sequence[Any]) -> list[T | ItemError]:
    """``function`` of every item that is not an ItemError already; its ItemErrors are kept in place."""
    results: list[T | ItemError] = []
    for item in items:
        if isinstance(item, ItemError):
            results.append(item)
            continue
        try:
            results.append(function(item))
        except ItemError as error:
            results.append(error)
    return results


def good_positions(items: Sequence[Any]) -> list[int]:
    return [position for position, item in enumerate(items) if not isinstance(item, ItemError)]


def answers(results: Sequence[Any], context: Any) -> list[Any]:
    """Bodies in the order of the requests; each error sets the HTTP status of its own request."""
    bodies = []
    for position, result in enumerate(results):
        if isinstance(result, ItemError):
            # The phrase goes into the status line: it must be short and plain.
            context.set_response_status(code=result.status, phrase="Bad item", idx=position)
            context.set_response_header(position, "content-type", "application/json")
            bodies.append(json.dumps(result.body()))
        else:
            bodies.append(result)
    return bodies
