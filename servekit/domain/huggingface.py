"""What a Hugging Face folder's configuration says about the model's task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HEADS = {"ForSequenceClassification": "sequence", "ForTokenClassification": "token"}
_BARE = ("Model", "ForMaskedLM", "ForPreTraining")
_OTHERS = ("ForCausalLM", "ForConditionalGeneration", "ForQuestionAnswering", "ForImageClassification", "ForCTC")


def task_of(config: Mapping[str, Any]) -> str | None:
    """``embed``, ``sequence`` or ``token`` by config.json's ``architectures``; None for a task that is none of them.

    A bare encoder, and one that was trained on masked words, embeds.
    """
    for architecture in config.get("architectures") or ():
        for ending, task in _HEADS.items():
            if str(architecture).endswith(ending):
                return task
        if str(architecture).endswith(_OTHERS):
            return None
        if str(architecture).endswith(_BARE):
            return "embed"
    return None


def pooling_problem(config: Mapping[str, Any]) -> str | None:
    """Why the embedding of this sentence-transformers pooling is not the mean over tokens, or None."""
    modes = {key: value for key, value in config.items() if key.startswith("pooling_mode_")}
    chosen = [key.removeprefix("pooling_mode_") for key, value in modes.items() if value]
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        chosen.append(mode)
    if all(name in ("mean_tokens", "mean") for name in chosen):
        return None
    return f"it pools by {', '.join(chosen)}; the text handler takes the mean over all tokens"
