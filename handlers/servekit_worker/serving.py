"""The handler that all others are: load, warm up, report; then answer batches."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from servekit_worker import batching, device, items, keep_fp32, labels, precision, report, threads, warmup, weights
from servekit_worker.engines.place import Place
from servekit_worker.errors import ItemError, SetupError
from servekit_worker.items import Item
from servekit_worker.options import ENGINES, Options, parse
from servekit_worker.outputs import JSON, split, to_json
from servekit_worker.precision import Precision

log = logging.getLogger(__name__)


class ModelHandler(ABC):
    """Subclass it in a file of your own; say how one item becomes a tensor, and override what differs.

    After ``initialize`` a handler has ``options``, ``model_dir``, ``device``, ``precision``, ``labels``
    (class index -> name) and ``model``. To refuse one item, raise ``servekit_worker.errors.ItemError``.
    """

    options: Options
    model_dir: Path
    device: torch.device
    precision: Precision
    labels: Mapping[int, str]
    model: Any
    _place: Place
    ragged = False
    """Whether items of different shapes make one batch, which ``collate`` then pads."""

    @abstractmethod
    def preprocess(self, item: Item) -> torch.Tensor:
        """One request as a CPU tensor [...] without batch axis."""

    def collate(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Items [...] as one batch [n, ...]."""
        return torch.stack(list(tensors))

    def forward(self, batch: torch.Tensor) -> Any:
        """The model's outputs for ``batch`` [n, ...] on the device, under inference_mode and autocast."""
        return self.model(batch)

    def postprocess(self, outputs: Any) -> list[Any]:
        """One answer an item, in order: JSON values, tensors, or text or bytes to be sent as they are."""
        return split(outputs)

    def load_model(self) -> Any:
        """The model: a torch.nn.Module, or a callable that is on ``self.device`` already.

        Override it for a model of a format that ``model.format`` does not know.
        """
        if self.options.model is None:
            raise SetupError(
                f"this archive has no model section, and {type(self).__name__} does not override "
                "load_model(): package it with weights, or build the model there."
            )
        return weights.load_model(self.options.model, self.model_dir, self._place)

    def sample(self) -> torch.Tensor | None:
        """An input [...] to warm up with when the archive has no example; None when there is none."""
        return None

    def encode(self, result: Any, item: Item) -> tuple[str | bytes, str | None]:
        """An answer as it is sent, and its content type (None: TorchServe's default)."""
        if isinstance(result, (str, bytes, bytearray)):
            return (result if isinstance(result, str) else bytes(result)), None
        return to_json(result), JSON

    def initialize(self, context: Any) -> None:
        """Called once by TorchServe, before READY. Whatever is wrong is raised and ends the worker."""
        properties = context.system_properties
        self.options = parse(context.model_yaml_config)
        self.model_dir = Path(properties["model_dir"])
        gpu_id = properties.get("gpu_id")
        self.device = device.claim(gpu_id)
        thread_count = threads.bound(self.options.threads)
        self._place = Place(self.device, self.options.threads, properties.get("batch_size") or 1)
        wanted = (self.options.precision, self.device, self.options.precision_reason)
        engine = self.options.model is not None and self.options.model.format in ENGINES
        if not engine:  # before the loading, which may be long
            self.precision = precision.resolve(*wanted)
        names = self.options.labels
        self.labels = labels.load(self.model_dir / names) if names else {}

        start = time.perf_counter()
        self.model = self.load_model()
        if isinstance(self.model, torch.nn.Module):
            self.model = self.model.eval().to(self.device)
        if engine:
            decided = hasattr(self.model, "own")  # a handler's own load_model may make a module of the program
            self.precision = precision.of_engine(self.model, *wanted) if decided else precision.resolve(*wanted)
        if self.options.keep_fp32:
            kept = keep_fp32.apply(self.model, self.options.keep_fp32, self.precision)
            log.info("servekit: %d modules compute in fp32: %s", len(kept), ", ".join(kept))
        self.precision.configure()
        load_s = time.perf_counter() - start
        log.info(
            "servekit: model %s on %s, precision %s (%s), %d threads, loaded in %.2f s",
            context.model_name,
            self.device,
            self.precision.name,
            self.precision.reason,
            thread_count,
            load_s,
        )
        warmup_s, sizes = self._warm_up(properties.get("batch_size"))
        self._report(context.model_name, gpu_id, thread_count, load_s, warmup_s, sizes)

    def handle(self, data: list[Mapping[str, Any]], context: Any) -> list[str | bytes]:
        """Answer a batch: one forward pass for the good items, a 4xx of its own for each bad one."""
        requests = [_read(row, context.get_all_request_header(index)) for index, row in enumerate(data)]
        results = batching.serve(requests, self.preprocess, self._infer, self.collate, ragged=self.ragged)
        return [
            self._answer(index, request, result, context)
            for index, (request, result) in enumerate(zip(requests, results, strict=True))
        ]

    def _infer(self, batch: torch.Tensor) -> list[Any]:
        with torch.inference_mode():
            with self.precision.autocast():
                raw = self.forward(batch.to(self.device))
            results = self.postprocess(raw)
        if not isinstance(results, list) or len(results) != len(batch):
            count = len(results) if isinstance(results, list) else type(results).__name__
            raise ValueError(f"postprocess must return a list of {len(batch)} answers, not {count}")
        return results

    def _answer(self, index: int, request: Item | ItemError, result: Any, context: Any) -> str | bytes:
        try:
            if isinstance(result, ItemError):
                raise result
            assert isinstance(request, Item), "a request that could not be read has its error as result"
            body, content_type = self.encode(result, request)
        except ItemError as error:
            context.set_response_status(error.status.value, error.status.phrase, index)
            body, content_type = to_json(error.body()), JSON
        if content_type:
            context.set_response_content_type(index, content_type)
        return body

    def _warm_up(self, batch_size: int | None) -> tuple[float | None, tuple[int, ...]]:
        name = self.options.example
        sample = warmup.read_example(self.model_dir / name, self.preprocess) if name else self.sample()
        if sample is None:
            log.info("servekit: no warm-up: no example and no input shape")
            return None, ()
        sizes = warmup.batch_sizes(batch_size)
        # TorchScript's executor profiles the first runs and compiles after them.
        rounds = 3 if isinstance(self.model, torch.jit.ScriptModule) else 1
        seconds = warmup.run(self._infer, sample, sizes, rounds, self.device)
        batches = " and ".join(str(size) for size in sizes)
        log.info(
            "servekit: warm-up: pid %d on %s, batches of %s, %.2f s",
            os.getpid(),
            self.device,
            batches,
            seconds,
        )
        return seconds, sizes

    def _report(
        self,
        model: str,
        gpu_id: int | None,
        thread_count: int,
        load_s: float,
        warmup_s: float | None,
        sizes: tuple[int, ...],
    ) -> None:
        folder = report.folder()
        if folder is None:
            return
        report.WorkerReport(
            model=model,
            pid=os.getpid(),
            device=str(self.device),
            gpu_id=gpu_id,
            gpu_uuid=device.uuid(self.device),
            precision=self.precision.name,
            precision_reason=self.precision.reason,
            threads=thread_count,
            load_s=round(load_s, 3),
            warmup_s=None if warmup_s is None else round(warmup_s, 3),
            warmup_batches=sizes,
            torch=torch.__version__,
        ).write(folder)


def _read(row: Mapping[str, Any], headers: Mapping[str, Any]) -> Item | ItemError:
    try:
        return items.read(row, headers)
    except ItemError as error:
        return error
