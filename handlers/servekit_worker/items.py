"""Items: what TorchServe hands over for each request of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servekit_worker.errors import ItemError


@dataclass(frozen=True)
class Item:
    """One request. ``body`` is bytes, or str or parsed JSON where TorchServe decoded it by content type.

    ``headers`` are the request's, with names in lower case.
    """

    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


def read(fields: Mapping[str, Any], headers: Mapping[str, Any]) -> Item:
    """Take the body out of the request's fields (``body``, or ``data`` of a form); 400 when it is empty."""
    key = next((key for key in ("body", "data") if key in fields), None)
    if key is None:
        found = ", ".join(sorted(str(name)[:40] for name in fields)) or "none"
        raise ItemError(
            400,
            f"no body: expected the raw body or a form field named data, got fields: {found}. "
            "With curl, send a file with -T FILE.",
        )
    body = fields[key]
    if isinstance(body, (bytes, bytearray, str)) and not body:
        raise ItemError(400, "the body is empty.")
    return Item(body, {name.lower(): value for name, value in headers.items() if isinstance(value, str)})
