"""From the archive's files to a model on its device, in evaluation mode."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import pickle
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from servekit_worker.engines import aoti, exported, onnx, safetensors
from servekit_worker.engines.place import Place
from servekit_worker.errors import SetupError
from servekit_worker.options import WITH_CLASS, ModelOptions

log = logging.getLogger(__name__)

_SHOWN = 3


_ENGINES = {"exported": exported.load, "aoti": aoti.load, "onnx": onnx.load}


def load_model(options: ModelOptions, root: Path, place: Place | None = None) -> Any:
    """Load what ``options`` names below ``root``. Errors in the user's own code pass through.

    A torch.nn.Module comes on the CPU; an engine (see servekit_worker.engines) on ``place.device``, which
    is the CPU when no place is given.
    """
    if options.format == "huggingface":
        raise SetupError("a Hugging Face folder is loaded by text_handler.py, or by load_model() of your handler.")
    weights = _existing(root / options.weights, "weights")
    if options.format in _ENGINES:
        return _ENGINES[options.format](weights, place or Place())
    if options.format == "torchscript":
        return _torchscript(weights)
    assert options.format in WITH_CLASS and options.file and options.class_name, "options.parse sees to it"
    module = import_file(_existing(root / options.file, "model file"), root)
    model = _class(module, options.class_name)(**options.args)
    state = safetensors.read(weights) if weights.suffix == ".safetensors" else read_state_dict(weights)
    fill(model, state, weights.name)
    return model


def import_file(path: Path, root: Path | None = None) -> ModuleType:
    """Import ``path`` under its own name; under a longer one when another module has that name.

    A file in a folder below ``root`` is imported as a part of that package, so that its relative imports work.
    """
    if root is not None and path.parent != root:
        return importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
    known = sys.modules.get(path.stem)
    if known is not None and _same_file(known, path):
        return known
    name = path.stem if known is None else f"servekit_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SetupError(f"model file {path.name}: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def read_state_dict(path: Path) -> Mapping[str, Any]:
    """Read tensors and nothing else from a file of ``torch.save``, on the CPU.

    Zip files are mapped, not copied: workers of one host share the pages. The old format cannot be.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise SetupError(
            f"weights {path.name}: not a state dict that torch.load(weights_only=True) reads: {first} "
            "Save it with torch.save(model.state_dict(), ...)."
        ) from error
    if not isinstance(state, Mapping) or not all(_belongs(key, value) for key, value in state.items()):
        found = f"keys {_some(list(state))}" if isinstance(state, Mapping) else type(state).__name__
        raise SetupError(
            f"weights {path.name}: not a state dict but a file with {found}. Save the state dict alone: "
            "torch.save(model.state_dict(), ...)."
        )
    return state


def fill(model: torch.nn.Module, state: Mapping[str, Any], name: str) -> None:
    """Put ``state`` into ``model``, every key of both sides. Tensors of the right dtype are not copied.

    Parameters that the file stores once stay one parameter, on every device.
    """
    own = model.state_dict()
    same = all(_dtype(own.get(key)) == _dtype(value) for key, value in state.items())
    try:
        model.load_state_dict(state, strict=True, assign=same)
    except RuntimeError as error:
        told = "; ".join(_differences(own, state)) or str(error)
        raise SetupError(f"weights {name} do not fit {type(model).__name__}: {told}.") from error
    if same:
        _tie(model)


def _tie(model: torch.nn.Module) -> None:
    """Assignment gave each name a parameter of its own, even where they share memory: ``to`` would copy each."""
    seen: dict[Any, torch.nn.Parameter] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.numel():
                layout = (parameter.dtype, parameter.shape, parameter.stride())
                module._parameters[key] = seen.setdefault((parameter.data_ptr(), *layout), parameter)


def _differences(own: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    missing = [key for key in own if key not in state]
    surplus = [key for key in state if key not in own]
    shapes = [
        f"{key} is {list(state[key].shape)} in the file and {list(own[key].shape)} in the model"
        for key in own
        if key in state and hasattr(own[key], "shape") and own[key].shape != state[key].shape
    ]
    told = []
    if missing:
        told.append(f"the file lacks {_some(missing)}")
    if surplus:
        told.append(f"the model has no {_some(surplus)}")
    if shapes:
        told.append(f"shapes differ: {_some(shapes)}")
    if surplus and all(key.startswith("module.") for key in state):
        told.append("the keys start with 'module.': save model.module.state_dict() of a DataParallel model")
    return told


def _dtype(value: Any) -> torch.dtype | None:
    return getattr(value, "dtype", None)


def _belongs(key: Any, value: Any) -> bool:
    """Whether a state dict may hold this entry: a tensor, or what a module's get_extra_state returned."""
    return isinstance(value, torch.Tensor) or str(key).endswith("_extra_state")


def _torchscript(path: Path) -> torch.nn.Module:
    log.warning(
        "servekit: %s is TorchScript, which torch deprecates. It is read; better package a state dict "
        "with its model file.",
        path.name,
    )
    try:
        return torch.jit.load(str(path), map_location="cpu")
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise SetupError(f"weights {path.name}: not a TorchScript file: {first}") from error


def _class(module: ModuleType, name: str) -> Any:
    found = getattr(module, name, None)
    if inspect.isclass(found) and issubclass(found, torch.nn.Module):
        return found
    there = [
        key
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, torch.nn.Module) and value.__module__ == module.__name__
    ]
    what = "no class" if found is None else "no torch.nn.Module class"
    raise SetupError(
        f"model file {module.__name__}.py has {what} {name!r}; it has: {', '.join(there) or 'none at all'}."
    )


def _existing(path: Path, what: str) -> Path:
    if path.is_dir():
        return path
    if not path.is_file():
        raise SetupError(f"{what} {path.name}: not in the archive ({path}).")
    if path.stat().st_size == 0:
        raise SetupError(f"{what} {path.name}: the file is empty.")
    return path


def _same_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).exists() and Path(file).samefile(path)


def _some(values: list[Any]) -> str:
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(str(value) for value in values[:_SHOWN]) + more
