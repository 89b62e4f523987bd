"""Where an engine runs, and which batches it will be given there."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from servekit_worker.errors import SetupError


@dataclass(frozen=True)
class Place:
    """The worker's device, its CPU threads (None: the library's choice), and the largest batch in items."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int | None = None
    batch_size: int = 1


def check_batches(name: str, smallest: int, largest: int | None, place: Place, way_out: str) -> None:
    """Refuse a file whose batch axis does not take every batch from 1 to ``place.batch_size`` items.

    ``smallest`` and ``largest`` (None: no limit) are the file's. Two as the smallest is torch's way to say
    "more than one is general": the engine has to answer for one item itself.
    """
    if smallest == largest:
        if smallest == place.batch_size == 1:
            return
        takes = f"batches of exactly {smallest}"
    else:
        if smallest <= 2 and (largest is None or place.batch_size <= largest):
            return
        takes = f"batches of {smallest} or more" if largest is None else f"batches of {smallest} to {largest}"
    given = "batches of 1 item" if place.batch_size == 1 else f"batches of 1 to {place.batch_size} items"
    fits = largest is not None and (smallest == 1 or (smallest == 2 and largest > 2))
    raise SetupError(
        f"weights {name}: its input takes {takes}, but with batchSize {place.batch_size} the server sends {given}. "
        f"{way_out}{f', or set batchSize to {largest}' if fits else ''}."
    )
