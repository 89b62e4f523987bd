"""Find the one state dict in what a training loop saved, and say what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servekit.errors import ModelError
from servekit.system.model_files.pickle_values import Built, Opaque, Tensor, shown

_DEPTH = 4
_SHOWN = 12
_EXTRA = "_extra_state"
SAVE_ANEW = "Save the state dict alone: torch.save(model.state_dict(), 'weights.pt')"


def unwrap(value: Any, key: str | None, path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(name -> Tensor or, for extra state, anything else; notes). ``key``: dotted path to the one to take.

    ModelError when there is none, or several and no key, or no such key.
    """
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {kind_of(value)}, not a state dict.", hint=SAVE_ANEW)
    found = _candidates(value, "", 0, set())
    if key is not None:
        if key not in found:
            raise ModelError(
                f"{path} holds no state dict at --weights-key {key!r}.", hint=f"It holds: {_listed(list(found))}."
            )
        return found[key], _notes(value, key, found[key])
    if not found:
        raise ModelError(
            f"{path} holds no state dict, which maps names to tensors and nothing else: {_contents(value)}.",
            hint=SAVE_ANEW,
        )
    if len(found) > 1:
        raise ModelError(
            f"{path} holds {len(found)} state dicts: {_listed(list(found))}.",
            hint="Choose one with --weights-key, or save it alone.",
        )
    ((label, state),) = found.items()
    return state, _notes(value, label, state)


def kind_of(value: Any) -> str:
    """A few words for a value; never its content, which may be endless."""
    if isinstance(value, Built):
        return f"an object of {shown(value.of)}"
    if isinstance(value, Tensor):
        return "one tensor"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if isinstance(value, Opaque):
        return f"a value of type {value.what}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _candidates(value: dict[Any, Any], label: str, depth: int, seen: set[int]) -> dict[str, dict[str, Any]]:
    """Dotted path -> state dict. The state of an optimizer is none, though it is full of tensors."""
    if id(value) in seen or value.keys() >= {"state", "param_groups"}:
        return {}
    seen.add(id(value))
    if _is_state(value) and not (label and _is_metrics(value)):
        return {label: value}
    found: dict[str, dict[str, Any]] = {}
    if depth < _DEPTH:
        for key, inner in value.items():
            if isinstance(key, str) and isinstance(inner, dict):
                found |= _candidates(inner, f"{label}.{key}" if label else key, depth + 1, seen)
    return found


def _is_state(value: dict[Any, Any]) -> bool:
    tensors = False
    for key, item in value.items():
        if not isinstance(key, str):
            return False
        if isinstance(item, Tensor):
            tensors = True
        elif not key.endswith(_EXTRA):
            return False
    return tensors


def _is_metrics(value: dict[Any, Any]) -> bool:
    """Single numbers and nothing else, inside a checkpoint: scores of a callback, and no model."""
    return not any(isinstance(item, Tensor) and (item.shape or item.odd) for item in value.values())


def _notes(value: dict[Any, Any], label: str, state: dict[str, Any]) -> tuple[str, ...]:
    if not label:
        return ()
    taken = f"Taken from the checkpoint: '{shown(label)}', {len(state)} names."
    first = label.partition(".")[0] if label not in value else label
    others = {key: item for key, item in value.items() if key != first}
    return (taken, f"Left out: {_contents(others)}.") if others else (taken,)


def _contents(value: dict[Any, Any]) -> str:
    told = []
    for key, item in list(value.items())[:_SHOWN]:
        name = shown(key) if isinstance(key, str) else f"({kind_of(key)})"
        told.append(f"{name} = {item}" if isinstance(item, (bool, int, float)) else f"{name} ({kind_of(item)})")
    if len(value) > _SHOWN:
        told.append(f"{len(value) - _SHOWN} more")
    return ", ".join(told) or "it is empty"


def _listed(labels: list[str]) -> str:
    told = [shown(label) or "the file itself" for label in labels[:_SHOWN]]
    if len(labels) > _SHOWN:
        told.append(f"{len(labels) - _SHOWN} more")
    return ", ".join(told) or "none"
