"""A Hugging Face folder on the disk: which of its files a server needs, and what they say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servekit.domain.huggingface import pooling_problem, task_of
from servekit.errors import ModelError, raise_together
from servekit.system.model_files import safetensors_file

CONFIG = "config.json"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "chat_template.jinja",
)
_VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
_CONVERT = (
    "Where you trust it: AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER, safe_serialization=True) writes "
    "model.safetensors."
)


@dataclass(frozen=True)
class HuggingFaceFolder:
    """``files`` go into the archive, relative to the folder. ``task`` None when config.json tells none."""

    task: str | None
    architecture: str
    max_length: int | None
    normalize: bool
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read(folder: Path) -> HuggingFaceFolder:
    """Look at a folder of ``save_pretrained``. ModelError with everything that keeps it from being served."""
    problems: list[str] = []
    config = _json(folder / CONFIG, problems)
    if config.get("auto_map"):
        problems.append(f"{folder / CONFIG} names code of its own (auto_map), which servekit never runs.")
    weights = _weights(folder, problems)
    tokenizer = [name for name in _TOKENIZER if (folder / name).exists()]
    if not any(name in _VOCABULARIES for name in tokenizer):
        problems.append(f"{folder} has no tokenizer (none of {', '.join(_VOCABULARIES)}).")
    normalize, notes = _sentence_transformer(folder, problems)
    files = [CONFIG, *weights, *tokenizer]
    for name in files:
        path = folder / name
        if path.is_symlink() and not path.resolve().is_file():
            problems.append(f"{path} is a link that leads nowhere.")
    for name in weights:
        if (folder / name).is_file():
            _check_weights(folder / name, problems)
    raise_together(ModelError, problems, hint="Package a folder that save_pretrained wrote, model and tokenizer both.")
    left = _left_out(folder, set(files))
    if left:
        notes.append(f"left out of {folder.name}: {', '.join(left)}.")
    architecture = str((config.get("architectures") or ["unknown"])[0])
    limit = _json(folder / "sentence_bert_config.json", []).get("max_seq_length")
    return HuggingFaceFolder(
        task=task_of(config),
        architecture=architecture,
        max_length=limit if isinstance(limit, int) and limit > 0 else None,
        normalize=normalize,
        files=tuple(sorted(files)),
        notes=tuple(notes),
    )


def _weights(folder: Path, problems: list[str]) -> list[str]:
    if (folder / _INDEX).exists():
        index = _json(folder / _INDEX, problems).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            problems.append(f"{folder / _INDEX} maps no weights to files.")
            return []
        shards = sorted(set(index.values()))
        for name in shards:
            if "/" in name or name.startswith("."):
                problems.append(f"{folder / _INDEX} names {name!r}, which is outside the folder.")
            elif not (folder / name).is_file():
                problems.append(f"{folder / name} is missing: {_INDEX} names it.")
        return [_INDEX, *(name for name in shards if "/" not in name)]
    if (folder / _WEIGHTS).exists():
        return [_WEIGHTS]
    pickled = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")))
    what = f"only pickled weights ({', '.join(pickled)}). {_CONVERT}" if pickled else "no model.safetensors."
    problems.append(f"{folder} holds {what}")
    return []


def _check_weights(path: Path, problems: list[str]) -> None:
    try:
        safetensors_file.read(path)
    except ModelError as error:
        problems.append(error.message)


def _sentence_transformer(folder: Path, problems: list[str]) -> tuple[bool, list[str]]:
    """(whether its embeddings have length 1, notes) by modules.json; ours is the mean over tokens."""
    modules = folder / "modules.json"
    if not modules.exists():
        return False, []
    try:
        listed = json.loads(modules.read_text(encoding="utf-8"))
        kinds = [str(module.get("type", "")).rpartition(".")[2] for module in listed]
        paths = [str(module.get("path", "")) for module in listed]
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        problems.append(f"{modules} cannot be read: {error}.")
        return False, []
    for kind, path in zip(kinds, paths, strict=True):
        if kind == "Pooling":
            why = pooling_problem(_json(folder / path / CONFIG, problems))
            if why:
                problems.append(f"{folder / path / CONFIG}: {why}.")
        elif kind not in ("Transformer", "Normalize"):
            problems.append(f"{modules}: the module {kind} has no counterpart in the text handler.")
    normalize = "Normalize" in kinds
    length = ", then scaled to length 1" if normalize else ""
    return normalize, [f"a sentence-transformers folder: the mean over all tokens{length}."]


def _json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path} does not exist.")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path} is not JSON: {error}.")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path} is not a JSON object.")
        return {}
    return value


def _left_out(folder: Path, taken: set[str]) -> list[str]:
    names = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir())
    return [name for name in names if name not in taken and not name.startswith(".")]
