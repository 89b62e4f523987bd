"""Does what goes into an archive work together? Run as a script in a child process, with cwd = a folder
laid out like the archive; reads the request as JSON on stdin and prints one JSON line::

    {"handler": "image_handler.py", "weights": "w.pt" | null, "format": "state_dict" | "torchscript",
     "file": "model.py" | null, "class": "Net" | null, "args": {...}}
    -> {"problem": str | null, "detail": str, "parameters": int | null, "hint": str}

Only the archive's files and site-packages can be imported here, as in the worker: what is missing, is
missing now and not on the server. Weights are read with weights_only=True, never unpickled freely.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


class ArchiveError(Exception):
    """What is wrong, what to do, and the evidence."""

    def __init__(self, message: str, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message, self.hint, self.detail = message, hint, detail


def main() -> None:
    request = json.load(sys.stdin)
    result: dict[str, Any] = {"problem": None, "detail": "", "hint": "", "parameters": None}
    # Whatever user code prints must not end up in our one line of JSON.
    answer, sys.stdout = sys.stdout, sys.stderr
    sys.path[0] = str(Path.cwd())
    # Here servekit may be installed, in an image it is not: an archive must do without.
    sys.modules["servekit"] = None  # type: ignore[assignment]
    try:
        _check_handler(request["handler"])
        if request["weights"]:
            result["parameters"] = _check_weights(request)
    except ArchiveError as problem:
        result |= {"problem": problem.message, "hint": problem.hint, "detail": problem.detail}
    print(json.dumps(result), file=answer, flush=True)
    # A user's module may have started threads: they must not keep this process alive.
    os._exit(0)


def _check_handler(file: str) -> None:
    """TorchServe imports it as a top-level module and wants exactly one class, or a function `handle`."""
    try:
        tree = ast.parse(Path(file).read_bytes(), filename=file)
    except (SyntaxError, ValueError) as error:
        raise ArchiveError(f"{file} is not Python: {error}.", "", traceback.format_exc(limit=0)) from error
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ArchiveError(
                f"{file}:{node.lineno}: a relative import; TorchServe imports the handler as a top-level module.",
                "Write an absolute import, and put the imported file into the archive with --extra-file.",
            )
    module = _import(file, "the handler")
    if hasattr(module, "handle"):
        return
    classes = [
        name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        listed = ", ".join(classes) or "none"
        raise ArchiveError(
            f"{file} must define exactly one class, or a function handle(data, context); it defines: {listed}.",
            "Move the other classes into a module of their own (--extra-file) and import them.",
        )
    missing = [name for name in ("initialize", "handle") if not hasattr(getattr(module, classes[0]), name)]
    if missing:
        raise ArchiveError(f"{file}: the class {classes[0]} has no {' and no '.join(missing)}.")


def _own_frames(error: BaseException) -> str:
    """The traceback, cut to the files of the archive: the frames between are Python's and torch's."""
    here = str(Path.cwd())
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and str(Path(frame.filename).absolute()).startswith(here)
    ]
    head = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join([*head, *traceback.format_exception_only(error)])


def _import(file: str, what: str) -> Any:
    name = file.removesuffix(".py").replace("/", ".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ArchiveError(
            f"{what} {file} imports {error.name!r}, which is neither in the archive nor installed here.",
            "Put a file of yours into the archive with --extra-file; install a package where the server runs.",
            _own_frames(error),
        ) from error
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise ArchiveError(
            f"{what} {file} cannot be imported: {type(error).__name__}: {error}", "", _own_frames(error)
        ) from error


def _check_weights(request: dict[str, Any]) -> int:
    import torch

    if request["format"] == "torchscript":
        try:
            model = torch.jit.load(request["weights"], map_location="cpu")
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0]
            raise ArchiveError(f"torch cannot read the TorchScript file: {first}") from error
        return sum(parameter.numel() for parameter in model.parameters())
    model = _build(request)
    # The worker's own reader, out of the archive: what passes here passes there.
    from servekit_worker import weights
    from servekit_worker.errors import SetupError

    file = Path(request["weights"])
    try:
        weights.fill(model, weights.read_state_dict(file), file.name)
    except SetupError as error:
        raise ArchiveError(str(error), "Are file, class, --model-arg and weights of the same model?") from error
    return sum(parameter.numel() for parameter in model.parameters())


def _build(request: dict[str, Any]) -> Any:
    import torch

    file, name = request["file"], request["class"]
    module = _import(file, "the model file")
    model_class = getattr(module, name, None)
    if not inspect.isclass(model_class):
        there = [
            key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, torch.nn.Module)
        ]
        near = difflib.get_close_matches(name, there, n=1)
        raise ArchiveError(
            f"{file} has no class {name!r}; it has: {', '.join(there) or 'no torch.nn.Module'}.",
            f"Did you mean {near[0]}?" if near else "",
        )
    try:
        model = model_class(**request["args"])
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise ArchiveError(
            f"{name}({', '.join(f'{k}={v!r}' for k, v in request['args'].items())}) failed: "
            f"{type(error).__name__}: {error}",
            "Pass the constructor's arguments with --model-arg KEY=VALUE, or model_args in servekit.toml.",
            _own_frames(error),
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ArchiveError(f"{name} is not a torch.nn.Module.")
    return model


if __name__ == "__main__":
    main()
