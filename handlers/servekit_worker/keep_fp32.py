"""Modules that compute in fp32 while the rest of the model runs in the worker's precision."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from servekit_worker.errors import SetupError
from servekit_worker.precision import Precision, strict

_SHOWN = 6
_HALF = (torch.float16, torch.bfloat16)


def apply(model: Any, patterns: Sequence[str], precision: Precision) -> tuple[str, ...]:
    """Make the modules that match ``patterns`` compute in strict fp32; return their names.

    A pattern is fnmatch's, on the names of ``named_modules()``; ``*`` also matches dots. What a module's
    ``forward`` is given as fp16 or bf16 is cast to fp32, autocast is off inside it, and TF32 too. At
    precision fp32 that is so everywhere, and nothing is wrapped. SetupError for a pattern without a module.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise SetupError(
            f"handler.keep_fp32 needs a torch.nn.Module of Python, and the model is {type(model).__name__}."
        )
    modules = {name: module for name, module in model.named_modules() if name}
    missing = [told for pattern in patterns if (told := _missing(pattern, list(modules)))]
    if missing:
        raise SetupError("handler.keep_fp32 cannot be used: " + "; ".join(missing) + ".")
    chosen = [name for name in modules if any(fnmatchcase(name, pattern) for pattern in patterns)]
    low = [name for name in chosen if any(p.dtype in _HALF for p in modules[name].parameters())]
    if low:
        raise SetupError(
            f"handler.keep_fp32: {_some(low)} has weights of 16 bits, which cannot compute in fp32. "
            "Build the model in fp32."
        )
    if precision.name != "fp32":
        for name in chosen:
            modules[name].forward = _kept(modules[name].forward, precision)
    return tuple(chosen)


def _kept(forward: Any, precision: Precision) -> Any:
    @functools.wraps(forward)
    def in_fp32(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(precision.device_type, enabled=False), strict(precision.name == "tf32"):
            return forward(*_wide(args), **_wide(kwargs))

    return in_fp32


def _wide(value: Any) -> Any:
    """``value`` with its half-precision tensors as fp32, inside tuples, lists and dicts too."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALF else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_wide, value))
    if type(value) in (tuple, list):
        return type(value)(map(_wide, value))
    return {key: _wide(inner) for key, inner in value.items()} if type(value) is dict else value


def _missing(pattern: str, names: list[str]) -> str | None:
    if any(fnmatchcase(name, pattern) for name in names):
        return None
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
    hint = f"near it: {', '.join(near)}" if near else f"there are: {_some(names)}"
    return f"{pattern!r} matches no module of the model ({hint})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "none"
