"""``package``: weights, model class, handler, labels and example -> one checked archive."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servekit import __version__, assets
from servekit.domain.model import (
    BUILTIN_HANDLERS,
    ModelSpec,
    name_problem,
    precision_problem,
    version_problem,
)
from servekit.domain.project import image_problems, tensor_problems
from servekit.errors import ConfigError, ModelError, raise_together
from servekit.render.manifest import manifest
from servekit.render.model_config import Placed, model_config, to_yaml
from servekit.system import archive, labels, probe, storage, weights
from servekit.system.members import Members
from servekit.system.zipstream import Written, ZipStream

CONFIG = "model-config.yaml"
LABELS = "index_to_name.json"
SCHEMA = 1


@dataclass(frozen=True)
class Packed:
    """A finished archive. ``size`` in bytes; ``parameters`` None for a handler without weights."""

    name: str
    version: str
    path: Path
    size: int
    parameters: int | None
    replaced: bool


def package(spec: ModelSpec, folder: Path, export_path: Path, progress: Callable[[str], None]) -> Packed:
    """Check everything, then write ``export_path/NAME.mar`` whole or not at all. Raises ServekitError."""
    _check_words(spec)
    weights_format = _weights_format(spec, folder, progress)
    members, placed = _collect(spec, folder, weights_format)
    members.check()
    progress(f"{spec.name}: checking handler{', class and weights' if placed.weights else ''} ...")
    parameters = _prove(spec, members, placed)
    target = export_path / f"{spec.name}.mar"
    replaced = target.exists()
    size = _write(target, members)
    return Packed(spec.name, spec.version, target, size, parameters, replaced)


def _check_words(spec: ModelSpec) -> None:
    problems = [name_problem(spec.name), version_problem(spec.version), precision_problem(spec.precision)]
    if not spec.builtin_handler and not spec.handler.endswith(".py"):
        problems.append(f"handler {spec.handler!r} is neither {' nor '.join(BUILTIN_HANDLERS)} nor a .py file.")
    if spec.model and not (spec.model_file or "").endswith(".py"):
        problems.append(f"model {spec.model!r} must be FILE.py:Class.")
    if spec.handler == "image":
        problems += [message for _, message in image_problems(spec.image)]
    if spec.handler == "tensor":
        problems += tensor_problems(spec.tensor)
    if spec.weights is None and (spec.builtin_handler or spec.model):
        problems.append(f"{spec.name} has no weights; only a handler of your own can do without.")
    raise_together(ConfigError, [problem for problem in problems if problem], hint="See: servekit package --help")


def _weights_format(spec: ModelSpec, folder: Path, progress: Callable[[str], None]) -> str | None:
    if spec.weights is None:
        return None
    kind, reason = weights.detect(folder / spec.weights)
    progress(f"{spec.name}: {spec.weights} is a {kind.replace('_', ' ')} ({reason}).")
    if kind == weights.TORCHSCRIPT:
        progress("TorchScript still works, but torch deprecates it; a state dict with --model stays.")
        if spec.model:
            raise ModelError(f"{spec.weights} is TorchScript, which carries its own class: leave out --model.")
    elif not spec.model:
        raise ModelError(
            f"{spec.weights} is a state dict: it needs the class that its tensors belong to.",
            hint="Add --model FILE.py:Class (or `model` in servekit.toml).",
        )
    return kind


def _collect(spec: ModelSpec, folder: Path, weights_format: str | None) -> tuple[Members, Placed]:
    """Every file at its place: what the worker will see as its working folder."""
    members = Members()
    runtime = assets.handlers()
    members.add_tree(runtime / "servekit_worker", "servekit_worker", "the runtime")
    if spec.builtin_handler:
        members.add(handler_file(spec), runtime / handler_file(spec), "handler")
    else:
        members.add(handler_file(spec), folder / spec.handler, "handler")
    model_file = weights_file = labels_file = example = None
    if spec.model_file:
        model_file = members.add(Path(spec.model_file).name, folder / spec.model_file, "model file")
    if spec.weights:
        weights_file = members.add(Path(spec.weights).name, folder / spec.weights, "weights")
    if spec.labels:
        text = json.dumps(labels.read(folder / spec.labels), indent=2, ensure_ascii=False) + "\n"
        labels_file = members.add(LABELS, text.encode(), "labels")
    if spec.example:
        example = members.add(f"example/{Path(spec.example).name}", folder / spec.example, "example")
    for extra in spec.extra_files:
        path = folder / extra
        if path.is_dir():
            members.add_tree(path, path.resolve().name, "extra file")
        else:
            members.add(path.name, path, "extra file")
    placed = Placed(weights_file, weights_format, model_file, labels_file, example)
    members.add(CONFIG, to_yaml(model_config(spec, placed)).encode(), "configuration")
    text = manifest(
        name=spec.name,
        version=spec.version,
        handler=handler_file(spec),
        serialized_file=weights_file,
        model_file=model_file,
        config_file=CONFIG,
    )
    members.add(archive.MANIFEST, text.encode(), "manifest")
    return members, placed


def handler_file(spec: ModelSpec) -> str:
    """The handler's file name inside the archive."""
    return f"{spec.handler}_handler.py" if spec.builtin_handler else Path(spec.handler).name


def _prove(spec: ModelSpec, members: Members, placed: Placed) -> int | None:
    """Import and load, in a child process that sees the archive's files and nothing else of ours."""
    request: dict[str, Any] = {
        "handler": handler_file(spec),
        "weights": placed.weights,
        "format": placed.weights_format,
        "file": placed.model_file,
        "class": spec.model_class,
        "args": dict(spec.model_args),
    }
    scratch = Path(tempfile.gettempdir()) / "servekit-package"
    with (
        storage.explained(scratch, members.rendered_size()),
        tempfile.TemporaryDirectory(prefix="servekit-package-") as folder,
    ):
        for place, source in members.files.items():
            target = Path(folder) / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, Path):
                target.symlink_to(source.resolve())
            else:
                target.write_bytes(source)
        try:
            result = probe.run("model", cwd=Path(folder), request=request)
        except probe.ProbeDiedError as error:
            files = " or ".join(filter(None, (request["handler"], request["file"])))
            raise ModelError(
                f"{spec.name}: {files} ended the process that imported it ({error.end}).",
                hint="Code that exits or crashes when it is imported ends a worker the same way.",
                detail=error.detail,
            ) from error
    if result["problem"]:
        raise ModelError(f"{spec.name}: {result['problem']}", hint=result["hint"], detail=result["detail"])
    parameters: int | None = result["parameters"]
    return parameters


def _write(target: Path, members: Members) -> int:
    """The archive: manifest first, hashes last, the rest sorted."""
    order = sorted(members.files, key=lambda place: (place != archive.MANIFEST, place))
    needed = members.size()
    with storage.explained(target, needed):
        target.parent.mkdir(parents=True, exist_ok=True)
        storage.check_room(target, needed)
        with ZipStream(target) as stream:
            written = [_add(stream, place, members.files[place]) for place in order]
            stream.add_bytes(archive.HASHES, _hashes(written))
            return stream.finish()


def _add(stream: ZipStream, place: str, source: Path | bytes) -> Written:
    return stream.add_file(place, source) if isinstance(source, Path) else stream.add_bytes(place, source)


def _hashes(written: list[Written]) -> bytes:
    listed = {member.name: {"sha256": member.sha256, "size": member.size} for member in written}
    return (
        json.dumps({"schema": SCHEMA, "servekit": __version__, "members": listed}, indent=2, ensure_ascii=False) + "\n"
    ).encode()
