"""What a user's weights become inside the archive: checked, unwrapped, converted - each step said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servekit.domain import state_dict
from servekit.domain.model import TASKS, ModelSpec
from servekit.errors import ConfigError, ModelError
from servekit.system.archives.members import Source
from servekit.system.model_files import checkpoint, huggingface, merge, pickles, weights
from servekit.verbs import fitting

# What torch writes as a zip can hold more than one of these; everything else is told apart by its first bytes.
_ZIPS = {"state_dict", "torchscript", "exported", "aoti"}
_BAKED = ("exported", "aoti", "onnx")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Intake:
    """``weights`` is their place in the archive, ``files`` every file of theirs by place. ``facts`` are told by
    ``inspect``. ``text``: what a Hugging Face folder says about itself."""

    format: str
    weights: str
    files: Mapping[str, Source]
    facts: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)


def take(spec: ModelSpec, folder: Path, scratch: Path, progress: Progress) -> Intake | None:
    """Read ``spec.weights``. None for a handler without weights. Raises ModelError, ConfigError."""
    if spec.weights is None:
        return None
    path = folder / spec.weights
    kind, reason = weights.detect(path)
    if spec.format and spec.format != kind:
        if not {kind, spec.format} <= _ZIPS:
            raise ModelError(
                f"{spec.weights} is {_SAID.get(kind, kind)} ({reason}), and cannot be taken as {spec.format}."
            )
        progress(f"{spec.name}: {spec.weights} looks like {kind} ({reason}); taken as {spec.format}, as --format says.")
        kind = spec.format
    else:
        progress(f"{spec.name}: {spec.weights} is {_SAID.get(kind, kind)} ({reason}).")
    _refuse(spec, kind)
    if kind == "huggingface":
        return _hugging_face(spec, path, folder, scratch, progress)
    for note in pickles.scan(path):
        progress(f"{spec.name}: {note}")
    if kind in ("state_dict", "safetensors"):
        return _state_dict(spec, path, folder, kind, progress)
    if kind == "torchscript":
        progress("TorchScript still works, but torch deprecates it; a state dict with --model stays.")
    return _as_it_is(spec, path, kind, progress)


_SAID = {
    "state_dict": "a state dict",
    "safetensors": "safetensors",
    "torchscript": "TorchScript",
    "exported": "a torch.export program",
    "aoti": "an AOTInductor package",
    "onnx": "an ONNX model",
    "huggingface": "a Hugging Face folder",
    "peft": "a PEFT adapter",
    "whole_module": "a pickled whole module",
}


def _refuse(spec: ModelSpec, kind: str) -> None:
    """Contradictions between the content and what was said about it."""
    if kind == "whole_module":
        raise ModelError(
            f"{spec.weights} is a pickled nn.Module: to read it is to run code of its own, and it breaks with each "
            "change of that code.",
            hint="Where you trust it, save the weights alone: "
            "torch.save(torch.load(FILE, weights_only=False).state_dict(), 'weights.pt'); then add --model.",
        )
    if kind == "peft":
        raise ModelError(
            f"{spec.weights} is a PEFT adapter without its base.",
            hint="Name the base as WEIGHTS and this folder with --adapter.",
        )
    needs_class = kind in ("state_dict", "safetensors")
    if needs_class and not spec.model:
        raise ModelError(
            f"{spec.weights} is {_SAID[kind]}: it needs the class that its tensors belong to.",
            hint="Add --model FILE.py:Class (or `model` in servekit.toml).",
        )
    if not needs_class and spec.model:
        raise ModelError(f"{spec.weights} is {_SAID[kind]}, which carries its own class: leave out --model.")
    if spec.adapter and kind != "huggingface":
        raise ConfigError(f"--adapter needs a Hugging Face folder as its base, and {spec.weights} is {_SAID[kind]}.")
    if spec.weights_key and kind != "state_dict":
        raise ConfigError(f"--weights-key is for checkpoints, and {spec.weights} is {_SAID[kind]}.")
    if kind == "huggingface" and spec.builtin_handler and spec.handler != "text":
        raise ModelError(
            f"{spec.weights} is a Hugging Face folder: serve it with --handler text or a handler of yours."
        )
    if spec.handler == "text" and kind != "huggingface":
        raise ModelError(f"--handler text needs a Hugging Face folder, and {spec.weights} is {_SAID[kind]}.")


def _state_dict(spec: ModelSpec, path: Path, folder: Path, kind: str, progress: Progress) -> Intake:
    found = checkpoint.read(path, spec.weights_key)
    for note in found.notes:
        progress(f"{spec.name}: {note}")
    facts = {
        "tensors": len(found.tensors),
        "dtypes": sorted({tensor.dtype for tensor in found.tensors.values()}),
    }
    rename: Mapping[str, str] = {}
    if state_dict.prefix(tuple(found.tensors)):
        fit = state_dict.fit(tuple(found.tensors), fitting.keys_of(spec, folder))
        if fit.problem:
            raise ModelError(f"{spec.name}: {fit.problem}", hint="Are file, class and weights of the same model?")
        rename = fit.rename
        if fit.note:
            progress(f"{spec.name}: {fit.note}")
    unchanged = not rename and not found.unwrapped
    if kind == "safetensors" and unchanged:
        name = path.name
        return Intake("safetensors", name, {name: path}, facts)
    if found.obstacle or not spec.convert:
        why = found.obstacle or "as --no-convert says"
        if not unchanged:
            raise ModelError(
                f"{spec.weights} must be unwrapped, which needs a conversion to safetensors: {why}.",
                hint="Save the state dict alone: torch.save(checkpoint['state_dict'], 'weights.pt')",
            )
        progress(f"{spec.name}: kept as it is, not as safetensors: {why}.")
        return Intake("state_dict", path.name, {path.name: path}, facts)
    name = f"{path.stem}.safetensors"
    progress(f"{spec.name}: stored as safetensors ({name}): the same numbers, and nothing to unpickle.")
    return Intake("safetensors", name, {name: checkpoint.safetensors(found, rename)}, facts)


def _hugging_face(spec: ModelSpec, path: Path, folder: Path, scratch: Path, progress: Progress) -> Intake:
    found = huggingface.read(path)
    for note in found.notes:
        progress(f"{spec.name}: {note}")
    task = spec.text.task or found.task
    if task is None:
        raise ModelError(
            f"{spec.weights}/config.json names {found.architecture}, which is none of the text handler's tasks "
            f"({', '.join(TASKS)}).",
            hint="Say --task where it is one of them all the same, or write a handler of your own.",
        )
    root = path
    if spec.adapter:
        root, told = merge.adapter(path, folder / spec.adapter, scratch / "merged", task)
        progress(f"{spec.name}: {told}")
        found = huggingface.read(root)
    place = "model"
    files: dict[str, Source] = {f"{place}/{name}": root / name for name in found.files}
    text = {
        "task": task,
        "max_length": spec.text.max_length or found.max_length,
        "normalize": found.normalize if spec.text.normalize is None else spec.text.normalize,
    }
    return Intake("huggingface", place, files, {"architecture": found.architecture}, text)


def _as_it_is(spec: ModelSpec, path: Path, kind: str, progress: Progress) -> Intake:
    files: dict[str, Source] = {path.name: path}
    if kind == "onnx":
        # torch.onnx.export and onnx.save put large tensors into a file of this name.
        beside = path.with_name(f"{path.name}.data")
        if beside.is_file():
            files[beside.name] = beside
            progress(f"{spec.name}: {beside.name} travels along: the graph keeps its tensors there.")
    facts = weights.describe(path, kind)
    if kind in _BAKED and spec.keep_fp32:
        raise ConfigError(f"--keep-fp32 needs the modules of a state dict; {spec.weights} is {_SAID[kind]}.")
    return Intake(kind, path.name, files, facts)
