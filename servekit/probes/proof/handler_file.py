"""What TorchServe would refuse, or mask, about the handler's file and the model's class."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servekit.probes.proof.problem import ProofError, own_frames, said


def check(file: str) -> None:
    """TorchServe imports it as a top-level module and wants exactly one class, or a function."""
    path, _, function = file.partition(":")
    path = Path(path).name
    if not path.endswith(".py"):
        path += ".py"
    if not Path(path).is_file():
        return  # a handler of TorchServe's own, by name
    try:
        tree = ast.parse(Path(path).read_bytes(), filename=path)
    except (SyntaxError, ValueError) as error:
        raise ProofError(f"{path} is not Python: {error}.", "", traceback.format_exc(limit=0)) from error
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ProofError(
                f"{path}:{node.lineno}: a relative import; TorchServe imports the handler as a top-level module.",
                "Write an absolute import, and put the imported file into the archive with --extra-file.",
            )
    module = imported(path, "the handler")
    if hasattr(module, function or "handle"):
        return
    classes = [
        name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        listed = ", ".join(classes) or "none"
        raise ProofError(
            f"{path} must define exactly one class, or a function handle(data, context); it defines: {listed}.",
            "Move the other classes into a module of their own (--extra-file) and import them.",
        )
    missing = [name for name in ("initialize", "handle") if not hasattr(getattr(module, classes[0]), name)]
    if missing:
        raise ProofError(f"{path}: the class {classes[0]} has no {' and no '.join(missing)}.")


def imported(file: str, what: str) -> Any:
    """The module of a file of the archive, with the true error where TorchServe shows another."""
    name = file.removesuffix(".py").replace("/", ".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ProofError(
            f"{what} {file} imports {error.name!r}, which is neither in the archive nor installed here.",
            "Put a file of yours into the archive with --extra-file; install a package where the server runs.",
            own_frames(error),
        ) from error
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise ProofError(f"{what} {file} cannot be imported: {said(error)}", "", own_frames(error)) from error


def build(model: Mapping[str, Any]) -> Any:
    """The model of the section ``handler.model``, empty; a ProofError for what its class or arguments lack."""
    import torch

    file, name, args = model["file"], model["class"], model.get("args") or {}
    module = imported(file, "the model file")
    model_class = getattr(module, name, None)
    if not inspect.isclass(model_class):
        there = [
            key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, torch.nn.Module)
        ]
        near = difflib.get_close_matches(name, there, n=1)
        raise ProofError(
            f"{file} has no class {name!r}; it has: {', '.join(there) or 'no torch.nn.Module'}.",
            f"Did you mean {near[0]}?" if near else "",
        )
    try:
        built = model_class(**args)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise ProofError(
            f"{name}({', '.join(f'{k}={v!r}' for k, v in args.items())}) failed: {said(error)}",
            "Pass the constructor's arguments with --model-arg KEY=VALUE, or model_args in servekit.toml.",
            own_frames(error),
        ) from error
    if not isinstance(built, torch.nn.Module):
        raise ProofError(f"{name} is not a torch.nn.Module.")
    return built
