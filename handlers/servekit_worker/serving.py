"""The base of our handlers, and of a user's own.

A request goes: ``preprocess`` (one item -> one tensor), all tensors of a batch stacked, ``forward`` (one
pass), ``postprocess`` (the batch's output -> one answer an item). Subclasses override what differs::

    from servekit_worker.serving import ModelHandler

    class MyHandler(ModelHandler):
        def preprocess(self, item):
            return torch.tensor(item["features"])
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from servekit_worker import batching, device, options, precision, threads, weights
from servekit_worker.batching import ItemError
from servekit_worker.report import WorkerReport

_log = logging.getLogger(__name__)


class ModelHandler:
    """Loads the model on the assigned device, warms it up, and serves batches."""

    def initialize(self, context: Any) -> None:
        """Called once by TorchServe, before the worker is READY."""
        properties = context.system_properties
        # The GPU first: whatever touches CUDA afterwards finds the right current device.
        self.device = device.assigned_device(properties.get("gpu_id"))
        self.options = options.read(context.model_yaml_config)
        self.folder = Path(properties["model_dir"])
        self.limit_image_pixels = bool(properties.get("limit_max_image_pixels", True))
        threads.bound(self.options.threads)
        self.precision = precision.choose(self.options.precision, self.device)
        started = time.monotonic()
        self.model = self.load_model()
        self.prepare()
        loaded = time.monotonic()
        batches = self.warm_up(int(properties.get("batch_size") or 1))
        WorkerReport(
            model=context.model_name,
            pid=os.getpid(),
            device=str(self.device),
            gpu_id=properties.get("gpu_id"),
            gpu_uuid=device.gpu_uuid(self.device),
            precision=self.precision.name,
            precision_reason=self.precision.reason,
            threads=torch.get_num_threads(),
            load_s=round(loaded - started, 3),
            warmup_s=round(time.monotonic() - loaded, 3) if batches else None,
            warmup_batches=batches,
            torch=torch.__version__,
        ).publish()

    def handle(self, data: Sequence[dict[str, Any]], context: Any) -> list[Any]:
        """One batch: as many answers as requests, in order."""
        items = batching.each(batching.request_body, data)
        tensors = batching.each(self.preprocess, items)
        results: list[Any] = list(tensors)
        for group in self.groups(tensors):
            outputs = self.run(torch.stack([tensors[position] for position in group]))
            answered = self.postprocess(outputs)
            if len(answered) != len(group):
                raise ValueError(
                    f"{type(self).__name__}.postprocess gave {len(answered)} answers for {len(group)} items"
                )
            for position, answer in zip(group, answered, strict=True):
                results[position] = answer
        return batching.answers(results, context)

    # -- what a subclass may override ------------------------------------------------------------------

    def load_model(self) -> torch.nn.Module:
        """The model, in evaluation mode, on ``self.device``."""
        if self.options.model is None:
            raise ValueError(
                f"{type(self).__name__} has no weights in its archive: package some, or override load_model()"
            )
        return weights.load(self.options.model, self.folder, self.device)

    def prepare(self) -> None:
        """Anything else to be read once; the model is there already."""

    def preprocess(self, item: Any) -> torch.Tensor:
        """One request's body -> a tensor without batch axis, on the CPU. Raise ItemError for a bad one."""
        raise NotImplementedError(f"{type(self).__name__} must define preprocess(item)")

    def forward(self, batch: torch.Tensor) -> Any:
        """(N, ...) on the device -> the model's output. Runs under inference mode and the precision."""
        return self.model(batch)

    def postprocess(self, outputs: Any) -> list[Any]:
        """The batch's output -> N answers: JSON values, text or bytes; an ItemError fails its item alone."""
        return [output.tolist() for output in outputs.float().cpu()]

    def example(self) -> Any:
        """A body to warm up with: the archive's example, or None when there is none."""
        if self.options.example is None:
            return None
        return (self.folder / self.options.example).read_bytes()

    # -- how it runs ------------------------------------------------------------------------------------

    def run(self, batch: torch.Tensor) -> Any:
        """The forward pass of one stacked batch, moved to the device."""
        with torch.inference_mode(), self.precision.applied(self.device):
            return self.forward(batch.to(self.device, non_blocking=True))

    def groups(self, tensors: Sequence[Any]) -> list[list[int]]:
        """Positions that can be stacked: same shape and dtype. Usually one group, so one forward pass."""
        groups: dict[Any, list[int]] = {}
        for position in batching.good_positions(tensors):
            tensor = tensors[position]
            groups.setdefault((tensor.shape, tensor.dtype), []).append(position)
        return list(groups.values())

    def warm_up(self, batch_size: int) -> tuple[int, ...]:
        """Run 1 and ``batch_size`` items before READY, so that no request pays for first-time set-up."""
        body = self.example()
        if body is None:
            _log.info("servekit: no warm-up: no example and no input shape")
            return ()
        try:
            item = self.preprocess(body)
        except ItemError as error:
            raise ValueError(f"the example in the archive is refused by its own handler: {error.message}") from error
        sizes = tuple(sorted({1, batch_size}))
        for size in sizes:
            self.postprocess(self.run(torch.stack([item] * size)))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return sizes
