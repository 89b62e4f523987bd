"""Text out: embeddings, classes, and entities; and how far two such answers are from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from servekit_worker import answers
from servekit_worker.text import Encoded


def mean_pooled(hidden: torch.Tensor, mask: torch.Tensor, normalize: bool) -> torch.Tensor:
    """[n, length, width], [n, length] -> [n, width]: the mean over tokens, in fp32; of length 1 if asked."""
    weights = mask.unsqueeze(-1).float()
    pooled = (hidden.float() * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(pooled, p=2, dim=1) if normalize else pooled


def classes(scores: Sequence[float], labels: Mapping[int, str], top_k: int) -> list[dict[str, Any]]:
    """The best ``top_k``, best first."""
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_k]
    return [{"label": labels.get(i, str(i)), "index": i, "score": scores[i]} for i in best]


def entities(scores: torch.Tensor, text: Encoded, labels: Mapping[int, str]) -> list[dict[str, Any]]:
    """Spans of words with one tag. ``scores`` [length, tags], softmax.

    A word's tag is that of its first token, since the others were not trained for it. ``B-`` begins a span, ``I-`` of
    the same kind goes on with it; ``O`` is none. A span's score is the mean of its words'.
    """
    found: list[dict[str, Any]] = []
    open_kind: str | None = None
    before: int | None = None
    for position, word in enumerate(text.words):
        if word is None or word == before:
            if word is not None and open_kind is not None:
                found[-1]["end"] = text.offsets[position][1]
            continue
        before = word
        score, index = scores[position].max(dim=0)
        tag = labels.get(int(index), str(int(index)))
        kind = tag[2:] if tag[:2] in ("B-", "I-") else tag
        if tag == "O":
            open_kind = None
            continue
        start, end = text.offsets[position]
        if tag[:2] != "B-" and kind == open_kind:
            found[-1]["end"] = end
            found[-1]["scores"].append(float(score))
        else:
            found.append({"label": kind, "start": start, "end": end, "scores": [float(score)]})
        open_kind = kind
    return [
        {
            "label": entity["label"],
            "start": entity["start"],
            "end": entity["end"],
            "text": text.text[entity["start"] : entity["end"]],
            "score": sum(entity["scores"]) / len(entity["scores"]),
        }
        for entity in found
    ]


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """The errors of answer ``b`` against ``a``: embeddings as vectors, scores class by class, entities as a list."""
    if "embedding" in a:
        return {**_vectors(a["embedding"], b["embedding"]), "top1": None}
    if "entities" in a:
        spans = [[(e["label"], e["start"], e["end"]) for e in answer["entities"]] for answer in (a, b)]
        same = spans[0] == spans[1]
        scores = [[e["score"] for e in answer["entities"]] for answer in (a, b)]
        return {**(_vectors(*scores) if same and scores[0] else {"max_rel": 0.0, "mean_rel": 0.0}), "top1": same}
    if "predictions" not in a:
        return {**_vectors([a["score"]], [b["score"]]), "top1": None}
    return answers.by_class(a["predictions"], b["predictions"])


def _vectors(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    left, right = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    gap, size = (left - right).abs(), left.abs()
    return {
        "max_rel": float(gap.max() / (size.max() or 1.0)),
        "mean_rel": float(gap.mean() / (size.mean() or 1.0)),
    }
