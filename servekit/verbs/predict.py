"""``predict``: one request as a user's client would send it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from servekit.errors import ConfigError, RequestError
from servekit.system import deployments, media_type, torchserve


def predict(
    root: Path,
    model: str,
    file: Path,
    *,
    name: str | None,
    content_type: str | None,
    progress: Callable[[str], None],
) -> bytes:
    """The body of the model's answer. Raises RequestError with the server's own words for any but 200."""
    state = deployments.find(root, name)
    if told := deployments.served(state, model).unproven:
        progress(told)
    try:
        body = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.", hint="Name a file that you may read.") from error
    answer = torchserve.predict(state, model, body, content_type or media_type.of(file))
    if answer.status != 200:
        raise RequestError(
            f"{model} answered HTTP {answer.status}: {answer.body.decode('utf-8', 'replace').strip()[:2000]}",
            hint=_HINTS.get(answer.status, "See: servekit logs"),
        )
    return answer.body


_HINTS = {
    413: "The body is over [server] max_request_mib of servekit.toml.",
    503: "The queue is full, no worker is ready, or the handler failed. See: servekit logs",
    507: "The worker ran out of memory. See: servekit logs",
}
