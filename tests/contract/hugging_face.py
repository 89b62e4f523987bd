"""Tiny Hugging Face folders, made here: random weights and a vocabulary of some words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "paris",
    "anna",
    "##s",
    "is",
    "in",
]
TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}


def config(**changes: Any) -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        **changes,
    )


def save_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=24).save_pretrained(folder)


def save(folder: Path, kind: str = "embed", **changes: Any) -> torch.nn.Module:
    """A folder for a task; the model that is in it."""
    classes = {
        "embed": transformers.BertModel,
        "sequence": transformers.BertForSequenceClassification,
        "token": transformers.BertForTokenClassification,
    }
    if kind == "token":
        changes = {"id2label": TAGS, "label2id": {v: k for k, v in TAGS.items()}, **changes}
    torch.manual_seed(0)
    model = classes[kind](config(**changes)).eval()
    for parameter in model.parameters():  # the library's initial weights are too small to tell anything apart
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def pooling(folder: Path, *, mode: str = "mean_tokens", normalize: bool = True) -> None:
    """What sentence-transformers puts beside it."""
    modules = [("sentence_transformers.models.Transformer", ""), ("sentence_transformers.models.Pooling", "1_Pooling")]
    modules += [("sentence_transformers.models.Normalize", "2_Normalize")] if normalize else []
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    told = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, f"pooling_mode_{mode}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(told))
