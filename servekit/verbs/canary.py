"""One real request a model, so that READY means: it has answered."""

from __future__ import annotations

import io
import json
import time

from servekit.domain.deployment import ServedModel, State
from servekit.errors import StartError
from servekit.system import media_type, torchserve


def check(state: State, model: ServedModel) -> str:
    """Send the archive's example, else an input that the handler is known to take; say what came of it.

    Returns ``answered in 12 ms`` or ``not checked: no example``. Raises StartError for any other answer
    than 200.
    """
    request = _example(model) or _made_up(model)
    if request is None:
        return "not checked: no example"
    body, content_type = request
    started = time.monotonic()
    answer = torchserve.predict(state, model.name, body, content_type)
    took_ms = (time.monotonic() - started) * 1000
    if answer.status != 200:
        raise StartError(
            f"{model.name} is loaded, but answered its example with HTTP {answer.status}.",
            detail=answer.body.decode("utf-8", "replace").strip()[:2000],
            hint="Look at the example and the handler; `servekit predict` repeats such a request.",
        )
    return f"answered in {took_ms:.0f} ms"


def _example(model: ServedModel) -> tuple[bytes, str] | None:
    if model.example is None:
        return None
    path = model.unpacked / model.example
    return path.read_bytes(), media_type.of(path)


def _made_up(model: ServedModel) -> tuple[bytes, str] | None:
    """An image of any content, a text, or zeros of the declared shape; nothing for a user's own handler."""
    handler = model.config.get("handler")
    if not isinstance(handler, dict):
        return None
    if model.handler_kind == "image":
        from PIL import Image

        buffer = io.BytesIO()
        side = int(handler.get("image", {}).get("resize", 256))
        Image.new("RGB", (side, side), (127, 127, 127)).save(buffer, format="PNG")
        return buffer.getvalue(), "image/png"
    if model.handler_kind == "text":
        return b"a short text", "text/plain"
    shape = (handler.get("tensor") or {}).get("input_shape")
    if model.handler_kind == "tensor" and shape:
        return json.dumps(_zeros([int(n) for n in shape])).encode(), "application/json"
    return None


def _zeros(shape: list[int]) -> object:
    return 0 if not shape else [_zeros(shape[1:]) for _ in range(shape[0])]
