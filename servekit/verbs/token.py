"""``token``: show or rotate the key that clients send."""

from __future__ import annotations

import shlex
from pathlib import Path

from servekit.domain.deployment import State
from servekit.errors import ConfigError
from servekit.system import deployments, media_type, tokens


def show(root: Path, name: str | None, kind: str) -> tokens.Token:
    """The token that works now: the key file's, renewed when it has expired."""
    return tokens.current(_with_auth(root, name), kind)


def rotate(root: Path, name: str | None, kind: str) -> tokens.Token:
    """A new token; the old one stops working at once, for everybody who holds it."""
    return tokens.rotate(_with_auth(root, name), kind)


def curl(root: Path, name: str | None, kind: str) -> str:
    """A command line that works as it is: a prediction of the first model, or its description."""
    state = _with_auth(root, name)
    key = tokens.current(state, kind).key
    model = state.models[0]
    argv = ["curl", "-sS", "-H", f"Authorization: Bearer {key}"]
    if kind == "management":
        return shlex.join([*argv, f"{state.management_url}/models/{model.name}"])
    if model.example:
        argv += ["-H", f"Content-Type: {media_type.of(Path(model.example))}", "--data-binary"]
        argv += [f"@{model.example}", f"{state.inference_url}/predictions/{model.name}"]
        return shlex.join(argv)
    return shlex.join([*argv, f"{state.inference_url}/ping"])


def _with_auth(root: Path, name: str | None) -> State:
    state = deployments.find(root, name)
    if not state.auth:
        raise ConfigError(f"{state.name} runs without token authorization ([server] auth = false).")
    return state
