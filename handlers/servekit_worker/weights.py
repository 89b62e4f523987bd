"""From the files of an archive to a model in evaluation mode on its device."""

from __future__ import annotations

import importlib
import logging
import warnings
from pathlib import Path

import torch

from servekit_worker.options import ModelOptions

_log = logging.getLogger(__name__)
_SHOWN = 5


def load(options: ModelOptions, folder: Path, device: torch.device) -> torch.nn.Module:
    """The model described by ``handler.model``. Weights are never unpickled freely."""
    if options.format == "torchscript":
        _log.info("TorchScript: torch deprecates it; a state dict with its class is the way that stays")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            model: torch.nn.Module = torch.jit.load(str(folder / options.weights), map_location=device)
        return model.eval()
    if options.format == "state_dict":
        model = build(options)
        state = torch.load(folder / options.weights, map_location="cpu", mmap=True, weights_only=True)
        fill(model, state)
        return model.to(device).eval()
    raise ValueError(f"handler.model.format {options.format!r} is unknown: state_dict or torchscript")


def build(options: ModelOptions) -> torch.nn.Module:
    """An instance of the model class. The archive's folder is on sys.path, so files import each other."""
    if not options.file or not options.class_name:
        raise ValueError("handler.model: a state dict needs `file` and `class`")
    name = options.file.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    model_class = getattr(module, options.class_name, None)
    if model_class is None:
        raise AttributeError(f"{options.file} has no class {options.class_name!r}")
    model: torch.nn.Module = model_class(**options.args)
    return model


def fill(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """load_state_dict, strict, with an error that names the first keys of each kind."""
    wanted = model.state_dict()
    kinds = {
        "missing": [key for key in wanted if key not in state],
        "unexpected": [key for key in state if key not in wanted],
        "of another shape": [
            f"{key} {tuple(state[key].shape)} for {tuple(wanted[key].shape)}"
            for key in wanted
            if key in state and state[key].shape != wanted[key].shape
        ],
    }
    problems = [
        f"{len(keys)} {kind}: {', '.join(keys[:_SHOWN])}{' ...' if len(keys) > _SHOWN else ''}"
        for kind, keys in kinds.items()
        if keys
    ]
    if problems:
        raise ValueError(f"the weights do not fit {type(model).__name__}: " + "; ".join(problems))
    model.load_state_dict(state)
