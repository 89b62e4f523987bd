"""The keys that a model's class expects, asked of the class itself in a child process."""

from __future__ import annotations

from pathlib import Path

from servekit.domain.model import ModelSpec
from servekit.errors import ModelError
from servekit.system import probe


def keys_of(spec: ModelSpec, folder: Path) -> tuple[str, ...]:
    """The names in the class's own state_dict(). ModelError when the class cannot be built."""
    file = folder / str(spec.model_file)
    roots = [(folder / extra).resolve().parent for extra in spec.extra_files]
    root = _root(spec, folder) or file.resolve().parent
    request = {
        "file": file.resolve().relative_to(root).as_posix(),
        "class": spec.model_class,
        "args": dict(spec.model_args),
        "paths": [str(path) for path in roots],
    }
    try:
        result = probe.run("keys", cwd=root, request=request)
    except probe.ProbeDiedError as error:
        raise ModelError(f"{spec.name}: {file} ended the process that imported it ({error.end}).") from error
    if result["problem"]:
        raise ModelError(f"{spec.name}: {result['problem']}", hint=result["hint"], detail=result["detail"])
    return tuple(result["keys"])


def _root(spec: ModelSpec, folder: Path) -> Path | None:
    """Where the package begins that the model file travels in; None when it travels alone."""
    file = (folder / str(spec.model_file)).resolve()
    for extra in spec.extra_files:
        package = (folder / extra).resolve()
        if package.is_dir() and package in file.parents:
            return package.parent
    return None
