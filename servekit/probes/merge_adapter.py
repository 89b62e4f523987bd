"""Merge a PEFT adapter into its base and compare answers before and after. Run as a script::

    {"base": folder, "adapter": folder, "output": folder, "task": "embed" | "sequence" | "token"}
    -> {"problem": str | null, "hint": str, "max_rel": float, "equal": bool, "layers": int}

Both are read from safetensors alone; nothing is fetched and no code of theirs runs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
_TOLERANCE = 1e-4
_TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "spiece", "sentencepiece")
_ALONG = ("modules.json", "sentence_bert_config.json")


def main() -> None:
    request = json.load(sys.stdin)
    answer, sys.stdout = sys.stdout, sys.stderr
    result: dict[str, Any] = {"problem": None, "hint": "", "max_rel": None, "equal": False, "layers": 0}
    try:
        result |= merge(Path(request["base"]), Path(request["adapter"]), Path(request["output"]), request["task"])
    except ImportError as error:
        result |= {
            "problem": f"merging an adapter needs the package {error.name}.",
            "hint": "Install it: pip install 'servekit[peft]'",
        }
    except Exception as error:  # their libraries raise whatever two folders bring up that do not fit
        first = str(error).strip().split("\n")[0][:300]
        result |= {"problem": f"cannot be merged: {type(error).__name__}: {first}"}
    print(json.dumps(result), file=answer, flush=True)
    os._exit(0)


def merge(base: Path, adapter: Path, output: Path, task: str) -> dict[str, Any]:
    if not (adapter / "adapter_model.safetensors").is_file():
        return {
            "problem": "it has no adapter_model.safetensors; pickled adapters are not read.",
            "hint": "Where you trust it, load it with peft and save it anew: save_pretrained writes safetensors.",
        }
    import shutil

    import torch
    import transformers
    from peft import PeftModel

    torch.manual_seed(0)
    kind = {
        "embed": transformers.AutoModel,
        "sequence": transformers.AutoModelForSequenceClassification,
        "token": transformers.AutoModelForTokenClassification,
    }[task]
    how = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    model = kind.from_pretrained(str(base), **how).eval()
    tuned = PeftModel.from_pretrained(model, str(adapter), local_files_only=True).eval()
    layers = sum(hasattr(module, "merge") and hasattr(module, "base_layer") for module in tuned.modules())
    ids = torch.randint(0, int(model.config.vocab_size), (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        before = _output(tuned(input_ids=ids))
        merged = tuned.merge_and_unload()
        merged.save_pretrained(str(output), safe_serialization=True)
        again = kind.from_pretrained(str(output), **how).eval()
        after = _output(again(input_ids=ids))
    for path in sorted(base.iterdir()):
        if path.name.startswith(_TOKENIZER) or path.name in _ALONG:
            shutil.copyfile(path, output / path.name)
        elif path.is_dir() and (base / "modules.json").exists() and path.name[:1].isdigit():
            shutil.copytree(path, output / path.name)
    gap = float((before.double() - after.double()).abs().max())
    size = float(before.double().abs().max()) or 1.0
    return {"max_rel": gap / size, "equal": gap / size <= _TOLERANCE, "layers": layers}


def _output(found: Any) -> Any:
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


if __name__ == "__main__":
    main()
