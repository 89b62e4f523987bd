"""Text in: a request's text as tokens, and the Hugging Face folder that knows how."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from servekit_worker.errors import ItemError, SetupError

MAX_CHARACTERS = 1_000_000
"""A text beyond it is refused (413) before it is tokenised: what a model reads of it is a small part anyway."""
IDS, TYPES, MASK = 0, 1, 2
"""The rows of an encoded text: token ids, segment ids, and 1 where a token is."""
_COUNT_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "ibert", "data2vec-text")
"""Model types whose positions begin after the padding id, so that fewer than max_position_embeddings fit."""
_ASKED = 'send text/plain, or JSON: a text, or {"text": ..., "text_pair": ...}'


@dataclass(frozen=True)
class Encoded:
    """A text and its tokens. ``offsets``: (start, end) of each token's characters, (0, 0) for special ones."""

    text: str
    rows: torch.Tensor
    offsets: tuple[tuple[int, int], ...]
    words: tuple[int | None, ...]
    truncated: bool


def read(body: Any) -> tuple[str, str | None]:
    """(text, second text or None) of a request's body. ItemError 400, 413 or 415."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        body = _decoded(bytes(body))
    pair = None
    if isinstance(body, dict):
        surplus = set(body) - {"text", "text_pair"}
        if surplus or "text" not in body:
            what = f"unknown key {sorted(map(str, surplus))[0]!r}" if surplus else "no key 'text'"
            raise ItemError(400, f"the JSON object has {what}: {_ASKED}.")
        body, pair = body["text"], body.get("text_pair")
    for part in (body, *(() if pair is None else (pair,))):
        if not isinstance(part, str):
            raise ItemError(400, f"expected one text, got {type(part).__name__}: {_ASKED}.")
        if len(part) > MAX_CHARACTERS:
            raise ItemError(413, f"the text has {len(part)} characters; {MAX_CHARACTERS} are the most.")
    if not body.strip():
        raise ItemError(400, "the text is empty.")
    return body, pair


def _decoded(raw: bytes) -> Any:
    """Bytes without a content type: JSON where they are an object or a quoted text, else the text itself."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ItemError(415, f"the body is not UTF-8 text: {_ASKED}.") from error
    if text.lstrip()[:1] in ("{", '"'):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


class Tokenizer:
    """The folder's own tokenizer, with the longest input that model and options allow."""

    def __init__(self, folder: Path, max_length: int | None) -> None:
        auto = _transformers().AutoTokenizer
        try:
            self._tokenizer = auto.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, use_fast=True
            )
        except Exception as error:  # its loaders raise whatever a broken folder brings up
            raise SetupError(f"the tokenizer of {folder.name} cannot be loaded: {_first(error)}") from error
        if not self._tokenizer.is_fast:
            raise SetupError(f"the tokenizer of {folder.name} has no fast form: save it with tokenizer.json.")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        limits = [self._tokenizer.model_max_length, _positions(config)]
        longest = min([limit for limit in limits if isinstance(limit, int) and limit > 0], default=512)
        self.max_length = min(max_length or longest, longest)
        if self._tokenizer.pad_token_id is None:
            # Padding is masked, so that any id does; models without a pad token are not trained on batches.
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self.pad_id = int(self._tokenizer.pad_token_id or 0)

    def encode(self, text: str, pair: str | None) -> Encoded:
        """int64 [3, length]: ids, segments, mask; cut to ``max_length`` tokens, which ``truncated`` tells."""
        found = self._tokenizer(
            text,
            pair,
            truncation=True,
            max_length=self.max_length,
            return_offsets_mapping=True,
            return_overflowing_tokens=True,
            return_token_type_ids=True,
        )
        one = {key: found[key][0] for key in ("input_ids", "attention_mask", "offset_mapping")}
        types = found["token_type_ids"][0] if "token_type_ids" in found else [0] * len(one["input_ids"])
        rows = torch.tensor([one["input_ids"], types, one["attention_mask"]], dtype=torch.int64)
        offsets = tuple((int(a), int(b)) for a, b in one["offset_mapping"])
        return Encoded(text, rows, offsets, tuple(found.word_ids(0)), len(found["input_ids"]) > 1)


def _positions(config: dict[str, Any]) -> int | None:
    """How many tokens a model of this config.json has positions for; None when it does not say."""
    most = config.get("max_position_embeddings")
    if isinstance(most, int) and config.get("model_type") in _COUNT_FROM_PADDING:
        return most - int(config.get("pad_token_id") or 0) - 1
    return most if isinstance(most, int) else None


def pad(texts: Sequence[torch.Tensor], pad_id: int) -> torch.Tensor:
    """One batch [n, 3, longest] of encoded texts [3, length]: padded ids, segments 0, mask 0."""
    longest = max(rows.shape[1] for rows in texts)
    batch = torch.zeros(len(texts), 3, longest, dtype=torch.int64)
    batch[:, IDS] = pad_id
    for index, rows in enumerate(texts):
        batch[index, :, : rows.shape[1]] = rows
    return batch


def load_model(folder: Path, task: str) -> torch.nn.Module:
    """The folder's model for ``task``, in fp32 on the CPU. SetupError for one with weights missing.

    Nothing is fetched, no code of the folder's runs, and no pickle is read.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("auto_map"):
        raise SetupError(f"{folder.name}/config.json names code of its own (auto_map), which is never run.")
    library = _transformers()
    kind = {
        "embed": library.AutoModel,
        "sequence": library.AutoModelForSequenceClassification,
        "token": library.AutoModelForTokenClassification,
    }[task]
    try:
        model, told = kind.from_pretrained(
            str(folder),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise SetupError(f"the model of {folder.name} cannot be loaded for task {task}: {_first(error)}") from error
    missing = sorted(key for key in told["missing_keys"] if task != "embed" or "pooler" not in key)
    other = [str(key[0] if isinstance(key, (tuple, list)) else key) for key in told.get("mismatched_keys") or ()]
    if missing or other:
        some = ", ".join([*missing, *other][:3])
        raise SetupError(
            f"{folder.name} has no weights for {len(missing) + len(other)} parameters of a model for task {task} "
            f"({some}, ...): they would be random. Is it the right task?"
        )
    return model.float()


def _transformers() -> Any:
    # Before the import: the library reads them then.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a worker has its own share of the cores
    try:
        import transformers
    except ImportError as error:
        raise SetupError(
            "the text handler needs the package transformers: install it where the server runs "
            "(pip install 'servekit[text]')."
        ) from error
    transformers.utils.logging.set_verbosity_error()
    return transformers


def _first(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
