"""Where an error starts: the output of every layer at one precision against that at fp32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servekit.probes.proof.served import Request, Served

_SAMPLE = 4096
_SHOWN = 3


def capture(served: Served, requests: Sequence[Request]) -> dict[str, Any]:
    """A sample of each leaf module's output on its first call, in the order of execution; {} without modules."""
    import torch

    model = getattr(served.handler, "model", None)
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return {}
    seen: dict[str, Any] = {}

    def note(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = next((t for t in _tensors(output)), None)
            if tensor is not None and tensor.is_floating_point() and name not in seen:
                flat = tensor.detach().flatten()
                seen[name] = flat[:: max(1, flat.numel() // _SAMPLE)].double().cpu()

        return hook

    leaves = [(name, module) for name, module in model.named_modules() if not any(module.children())]
    handles = [module.register_forward_hook(note(name)) for name, module in leaves]
    try:
        served.answer(requests)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def start_of_error(reference: dict[str, Any], other: dict[str, Any], tolerance: float) -> tuple[str, ...]:
    """The first layer beyond ``tolerance`` and those that then double the error, as ``name (relative error)``."""
    errors: list[tuple[str, float]] = []
    for name, a in reference.items():
        b = other.get(name)
        if b is not None and a.shape == b.shape and a.numel():
            size = float(a.abs().max()) or 1.0
            error = float((a - b).abs().max()) / size
            errors.append((name, error if error == error else float("inf")))
    beyond = [i for i, (_, error) in enumerate(errors) if error > tolerance]
    # The first one beyond, and later ones that multiply what they are given; the rest pass the error on.
    starts = [i for i in beyond if i == beyond[0] or error_grows(errors[i - 1][1], errors[i][1])]
    return tuple(f"{errors[i][0]} ({errors[i][1]:.1e})" for i in starts[:_SHOWN])


def error_grows(before: float, after: float) -> bool:
    return after > 2 * before


def _tensors(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
