"""Text in; an embedding, classes, or entities out: the model and tokenizer of a Hugging Face folder.

Request: text/plain in UTF-8, or JSON: a text, or {"text": ..., "text_pair": ...}. Items of different lengths make
         one padded batch; padding is masked, and no answer depends on its neighbours.
Answer:  task embed     {"embedding": [...], "tokens": 7, "truncated": false}, the mean over all tokens;
         task sequence  {"predictions": [{"label", "index", "score"}, ...], ...}, best first; one ``score`` for a
                        regression;
         task token     {"entities": [{"label", "start", "end", "text", "score"}, ...], ...}.
         ``truncated`` tells that the text was longer than ``max_length`` tokens, and cut.
Errors:  400 empty or not one text, 413 more than a million characters, 415 not UTF-8; for that item alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from servekit_worker import text, text_answers
from servekit_worker.errors import SetupError
from servekit_worker.items import Item
from servekit_worker.options import TextOptions
from servekit_worker.serving import ModelHandler


class TextHandler(ModelHandler):
    """Encoded texts [n, 3, length] in, one answer a text out."""

    ragged = True

    def load_model(self) -> torch.nn.Module:
        if self.options.model is None or self.options.model.format != "huggingface":
            raise SetupError("text_handler.py serves a Hugging Face folder (model.format huggingface).")
        folder = self.model_dir / self.options.model.weights
        self._tokenizer = text.Tokenizer(folder, self._text.max_length)
        model = text.load_model(folder, self._text.task)
        names = getattr(model.config, "id2label", None) or {}
        self._names: Mapping[int, str] = self.labels or {int(key): str(value) for key, value in names.items()}
        self._told: dict[int, text.Encoded] = {}
        return model

    def handle(self, data: list[Mapping[str, Any]], context: Any) -> list[str | bytes]:
        self._told.clear()
        return super().handle(data, context)

    def preprocess(self, item: Item) -> torch.Tensor:
        encoded = self._tokenizer.encode(*text.read(item.body))
        self._told[id(item)] = encoded
        return encoded.rows

    def collate(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return text.pad(tensors, self._tokenizer.pad_id)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """[n, 3, length] -> embeddings [n, width], scores [n, classes], or [n, length, tags]."""
        inputs = {"input_ids": batch[:, text.IDS], "attention_mask": batch[:, text.MASK]}
        if getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = batch[:, text.TYPES]
        output = self.model(**inputs)
        if self._text.task == "embed":
            return text_answers.mean_pooled(output.last_hidden_state, batch[:, text.MASK], self._text.normalize)
        logits = output.logits.float()
        if self._text.task == "token":
            return logits.softmax(-1)
        kind = getattr(self.model.config, "problem_type", None)
        if kind == "regression" or logits.shape[1] == 1:
            return logits
        return logits.sigmoid() if kind == "multi_label_classification" else logits.softmax(-1)

    def encode(self, result: Any, item: Item) -> tuple[str | bytes, str | None]:
        encoded = self._told[id(item)]
        told = {"tokens": int(encoded.rows.shape[1]), "truncated": encoded.truncated}
        return super().encode({**self._answer_of(result, encoded), **told}, item)

    def sample(self) -> torch.Tensor:
        """A short text."""
        return self._tokenizer.encode("a short text", None).rows

    def compare(self, a: Any, b: Any) -> dict[str, Any]:
        """How far answer ``b`` is from the reference ``a``; see servekit_worker.text_answers."""
        return text_answers.compare(a, b)

    def _answer_of(self, result: torch.Tensor, encoded: text.Encoded) -> dict[str, Any]:
        if self._text.task == "embed":
            return {"embedding": result.tolist()}
        if self._text.task == "token":
            return {"entities": text_answers.entities(result[: len(encoded.words)], encoded, self._names)}
        if result.numel() == 1:
            return {"score": float(result)}
        return {"predictions": text_answers.classes(result.tolist(), self._names, self._text.top_k)}

    @property
    def _text(self) -> TextOptions:
        if self.options.text is None:
            raise SetupError(f"text_handler.py serves kind text, but handler.kind is {self.options.kind}.")
        return self.options.text
