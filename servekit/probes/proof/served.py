"""The archive's handler as TorchServe's own loader makes it, asked as TorchServe's worker asks."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from servekit.probes.proof import handler_file
from servekit.probes.proof.problem import ProofError, own_frames, said

MANIFEST = Path("MAR-INF/MANIFEST.json")


@dataclass(frozen=True)
class Request:
    """A request's body as it would arrive, and its media type."""

    name: str
    body: bytes
    content_type: str

    def decoded(self) -> Any:
        """The body as TorchServe hands it to a handler: parsed JSON, text, or bytes."""
        if self.content_type.startswith("application/json"):
            with contextlib.suppress(ValueError):
                return json.loads(self.body)
        if self.content_type.startswith("text"):
            with contextlib.suppress(UnicodeDecodeError):
                return self.body.decode()
        return bytearray(self.body)


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str | None
    body: bytes


class BatchFailedError(Exception):
    """The handler raised, or answered another number of items than it was asked."""


class Served:
    """A loaded handler. ``load_s``: seconds that ``initialize`` took, the class's import included."""

    def __init__(self, precision: str | None, gpu: int | None, batch_size: int, *, fallible: bool = False) -> None:
        """Load with ``handler.precision`` set to ``precision`` (None: as it is written).

        Raises ProofError; with ``fallible``, whatever the handler's initialize raises.
        """
        from ts.model_loader import ModelLoaderFactory

        manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))["model"]
        _configure(manifest.get("configFile"), precision)
        started = time.perf_counter()
        try:
            service = ModelLoaderFactory.get_model_loader().load(
                manifest["modelName"], str(Path.cwd()), manifest["handler"], gpu, batch_size, None, True, _metrics()
            )
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if fallible:
                raise
            raise _explained(error) from error
        self.load_s = time.perf_counter() - started
        self.context = service.context
        self._entry = service._entry_point
        owner = getattr(self._entry, "__self__", None)
        self.handler: Any = owner
        self.ours = owner is not None and any(
            c.__module__ == "servekit_worker.serving" and c.__name__ == "ModelHandler" for c in type(owner).__mro__
        )

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Ask in one batch. Raises BatchFailedError."""
        from ts.context import RequestProcessor

        self.context.request_ids = {index: str(index) for index in range(len(requests))}
        self.context.request_processor = [
            RequestProcessor({"body": {"content-type": request.content_type}, "content-type": request.content_type})
            for request in requests
        ]
        self.context.metrics.request_ids = self.context.request_ids
        try:
            answers = self._entry([{"body": request.decoded()} for request in requests], self.context)
        except Exception as error:
            raise BatchFailedError(said(error)) from error
        if not isinstance(answers, (list, tuple)) or len(answers) != len(requests):
            count = len(answers) if isinstance(answers, (list, tuple)) else f"a {type(answers).__name__}"
            raise BatchFailedError(f"{len(requests)} items were asked and {count} answered")
        return [self._read(index, answer) for index, answer in enumerate(answers)]

    def _read(self, index: int, answer: Any) -> Answer:
        status = self.context.get_response_status(index)[0] or 200
        content_type = self.context.get_response_content_type(index)
        if isinstance(answer, str):
            answer = answer.encode()
        elif not isinstance(answer, (bytes, bytearray)):
            answer = json.dumps(answer, default=str).encode()
        return Answer(int(status), content_type, bytes(answer))


def section() -> dict[str, Any]:
    """The ``handler:`` section of model-config.yaml; {} for an archive that is not ours."""
    config = json.loads(MANIFEST.read_text(encoding="utf-8"))["model"].get("configFile")
    if not config or not Path(config).is_file():
        return {}
    loaded = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
    found = loaded.get("handler") if isinstance(loaded, dict) else None
    return found if isinstance(found, dict) else {}


def _configure(config: str | None, precision: str | None) -> None:
    if precision is None or not config:
        return
    path = Path(config)
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    loaded["handler"]["precision"] = precision
    path.unlink()  # it may be a link to the archive's own
    path.write_text(yaml.safe_dump(loaded, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _metrics() -> Any:
    import ts
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    cache = MetricsCacheYamlImpl(config_file_path=str(Path(ts.__file__).parent / "configs" / "metrics.yaml"))
    cache.initialize_cache()
    return cache


def _explained(error: BaseException) -> ProofError:
    """The same failure in the words of whoever caused it, where we can tell."""
    model = section().get("model") or {}
    if model.get("file") and model.get("class"):
        try:
            handler_file.build(model)
        except ProofError as better:
            return better
    if type(error).__name__ == "SetupError":
        hint = "Are file, class, --model-arg and weights of the same model?" if "do not fit" in str(error) else ""
        return ProofError(str(error), hint)
    return ProofError(f"the handler's initialize failed: {said(error)}", "", own_frames(error))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing that a handler prints is a result of ours."""
    import sys

    with contextlib.redirect_stdout(sys.stderr):
        yield
