"""A PEFT adapter and its base made one model, in a child process."""

from __future__ import annotations

from pathlib import Path

from servekit.errors import ModelError
from servekit.system import probe


def adapter(base: Path, folder: Path, output: Path, task: str) -> tuple[Path, str]:
    """Merge into ``output``; the folder and the sentence that says how equal both are. Raises ModelError."""
    if not (folder / "adapter_config.json").is_file():
        raise ModelError(f"{folder} is no PEFT adapter: it has no adapter_config.json.")
    request = {"base": str(base.resolve()), "adapter": str(folder.resolve()), "output": str(output), "task": task}
    result = probe.run("merge_adapter", request=request, timeout_s=1800)
    if result["problem"]:
        raise ModelError(f"{folder}: {result['problem']}", hint=result.get("hint", ""), detail=result.get("detail", ""))
    told = f"adapter {folder.name} merged into {result['layers']} layers; answers before and after differ by at most "
    told += f"{result['max_rel']:.1e}"
    if not result["equal"]:
        raise ModelError(
            f"{folder}: the merged model does not answer as the base with its adapter: relative error "
            f"{result['max_rel']:.1e}.",
            hint="Merge it yourself in fp32 (merge_and_unload), look at it, and package the result.",
        )
    return output, f"{told}."
