"""The first forward passes, before READY: kernels are loaded and memory is reserved at nobody's cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from servekit_worker.errors import ItemError, SetupError
from servekit_worker.items import Item


def batch_sizes(largest: int | None) -> tuple[int, ...]:
    """The smallest and the largest batch that this worker will see."""
    return (1, largest) if largest and largest > 1 else (1,)


def run(
    infer: Callable[[torch.Tensor], list[Any]],
    sample: torch.Tensor,
    sizes: tuple[int, ...],
    rounds: int,
    device: torch.device,
) -> float:
    """Send ``sample`` [...] as batches [size, ...] through ``infer``; return the seconds it took."""
    start = time.perf_counter()
    for size in sizes:
        batch = torch.stack([sample] * size)
        for _ in range(rounds):
            infer(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def read_example(path: Path, preprocess: Callable[[Item], torch.Tensor]) -> torch.Tensor:
    """The example as the model takes it. Text types are decoded as TorchServe would decode a request."""
    try:
        raw = path.read_bytes()
        suffix = path.suffix.lower()
        body: Any = raw
        if suffix == ".json":
            body = json.loads(raw)
        elif suffix == ".txt":
            body = raw.decode("utf-8")
    except OSError as error:
        raise SetupError(f"example {path.name}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SetupError(f"example {path.name}: cannot be decoded: {error}.") from error
    try:
        return preprocess(Item(body))
    except ItemError as error:
        raise SetupError(
            f"example {path.name}: the handler refuses it: {error.status.value} {error.message}"
        ) from error
