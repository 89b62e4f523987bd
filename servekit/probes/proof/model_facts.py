"""What is told about the model itself: its size, its arithmetic, and whether it looks trained."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from servekit.probes.proof.cost import Inner
from servekit.probes.proof.problem import ProofError
from servekit.probes.proof.served import Request, Served


def parameters(served: Served) -> int | None:
    import torch

    model = getattr(served.handler, "model", None)
    return sum(p.numel() for p in model.parameters()) if isinstance(model, torch.nn.Module) else None


def flops(served: Served, request: Request) -> int | None:
    """Floating-point operations of one item in matrix products and convolutions; None where torch cannot count."""
    from torch.utils.flop_counter import FlopCounterMode

    if not served.ours:
        return None
    inner = Inner(served, [request])
    with contextlib.suppress(Exception), FlopCounterMode(display=False) as counter:
        inner.run()
        return int(counter.get_total_flops()) or None
    return None


def untrained(served: Served) -> str:
    """Why the weights look untrained, or an empty text: norm layers leave exactly 1 and 0 with the first step."""
    import torch

    model = getattr(served.handler, "model", None)
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return ""
    norms = [
        m
        for m in model.modules()
        if "Norm" in type(m).__name__ and isinstance(getattr(m, "weight", None), torch.Tensor)
    ]
    if norms and all(bool((m.weight == 1).all()) and (m.bias is None or bool((m.bias == 0).all())) for m in norms):
        return f"all {len(norms)} norm layers are as initialised: untrained, so no best class is claimed"
    return ""


def has_classes(section: dict[str, Any], served: Served) -> bool:
    """Whether the largest output is a class by what archive or handler say, and not just the largest number."""
    text = section.get("text") or {}
    if section.get("kind") == "custom" and hasattr(served.handler, "compare"):
        return True
    return section.get("kind") == "image" or bool(section.get("labels")) or text.get("task") in ("sequence", "token")


def check_labels(served: Served, section: dict[str, Any], requests: Sequence[Request]) -> None:
    """As many names as classes, where both can be counted."""
    import torch

    names = getattr(served.handler, "labels", None)
    if not names or section.get("kind") not in ("image", "tensor"):
        return
    seen: list[Any] = []
    original = served.handler.forward

    def caught(batch: Any) -> Any:
        seen.append(original(batch))
        return seen[-1]

    served.handler.forward = caught
    try:
        served.answer(requests[:1])
    finally:
        del served.handler.forward
    if seen and isinstance(seen[0], torch.Tensor) and seen[0].dim() == 2 and seen[0].shape[1] != len(names):
        raise ProofError(
            f"the labels name {len(names)} classes, but the model has {seen[0].shape[1]} outputs.",
            "Give a name for each output, in the order of the outputs.",
        )
