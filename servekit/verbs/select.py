"""Which models a deployment serves, and what each of them gets: workers, batch, threads."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from servekit.domain.deployment import ServedModel
from servekit.domain.gpu import GpuPlan
from servekit.domain.project import Project
from servekit.errors import ModelError, raise_together
from servekit.system import archive, deployments

STORE = "model_store"


def models(
    names: Sequence[str], toml: Project, root: Path, gpus: GpuPlan, *, unpack: bool
) -> tuple[tuple[ServedModel, ...], tuple[str, ...]]:
    """Read (and unpack) the archives of ``names``; also what the user should know about them.

    A name stands for ``model_store/NAME.mar``; a path ending in ``.mar`` for itself. No name at all means
    every model of servekit.toml, or without that file everything in the store. Order does not matter:
    devices are always explicit.
    """
    cache = deployments.cache(root)
    # A dry run leaves no note of the hashes it computed.
    infos = [archive.open_archive(path, cache if unpack else None) for path in _paths(names, toml, root)]
    specs = [toml.model(info.name) for info in infos]
    workers = [spec.workers if spec and spec.workers else max(1, gpus.count) for spec in specs]
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // sum(workers))
    served, notes = [], []
    for info, spec, count in zip(infos, specs, workers, strict=True):
        batch = int(info.config.get("batchSize") or 1)
        delay = int(info.config.get("maxBatchDelay") or 100)
        if gpus.count and count < gpus.count:
            notes.append(f"{info.name}: {count} worker(s) for {gpus.count} GPUs; some GPUs will not serve it.")
        served.append(
            ServedModel(
                name=info.name,
                version=info.version,
                sha256=info.sha256,
                archive=info.path,
                unpacked=archive.unpack(info, cache) if unpack else cache / info.sha256,
                members=info.members,
                manifest=info.manifest,
                config=info.config,
                workers=count,
                batch_size=spec.batch_size if spec else batch,
                max_batch_delay_ms=spec.max_batch_delay_ms if spec else delay,
                threads=threads,
                example=_example(info),
            )
        )
    _refuse_same_name(served)
    notes.append(f"CPU threads: {threads} a worker ({cores} cores, {sum(workers)} worker(s)).")
    return tuple(served), tuple(notes)


def python_path(inherited: str, served: Sequence[ServedModel]) -> tuple[str | None, tuple[str, ...]]:
    """What may stay of PYTHONPATH, and what may not.

    TorchServe puts inherited entries before the archive; one that holds a module of the same name as the
    archive's would be imported in its stead.
    """
    modules = {Path(member).parts[0] for model in served for member in model.members}
    tops = {name.removesuffix(".py") for name in modules if name.endswith(".py") or "." not in name}
    kept: list[str] = []
    dropped: list[str] = []
    for entry in filter(None, inherited.split(os.pathsep)):
        folder = Path(entry).absolute()
        hides = any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for top in tops)
        (dropped if hides else kept).append(str(folder))
    return os.pathsep.join(kept) or None, tuple(dropped)


def _paths(names: Sequence[str], toml: Project, root: Path) -> list[Path]:
    store = root / STORE
    by_path = bool(names) and all(name.endswith(".mar") for name in names)
    there = [] if by_path else _in_store(store)  # archives named by path do not need the store
    wanted = list(names) or [model.name for model in toml.models] or there
    if not wanted:
        raise ModelError(f"There is nothing to serve: {store} holds no .mar.", hint="Make one: servekit package")
    paths: list[Path] = []
    problems: list[str] = []
    for name in dict.fromkeys(wanted):
        path = (root / name) if name.endswith(".mar") else store / f"{name}.mar"
        if path.resolve() in {known.resolve() for known in paths}:
            continue  # said twice, once by name and once by path
        paths.append(path)
        if problem := _problem(path):
            problems.append(f"{name}: {problem}")
    listed = f"In the store: {', '.join(there)}. " if there else ""
    raise_together(ModelError, problems, hint=f"{listed}Make one with: servekit package")
    return paths


def _in_store(store: Path) -> list[str]:
    try:
        with os.scandir(store) as entries:
            return sorted(Path(entry.name).stem for entry in entries if entry.name.endswith(".mar"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ModelError(
            f"{store} cannot be read: {error.strerror}.", hint="Check who owns that folder, and its permissions."
        ) from error


def _problem(path: Path) -> str | None:
    """Why there is no archive to open at ``path``. Path.is_file raises, or lies, about a closed folder."""
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {path}."
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    return None if stat.S_ISREG(kind) else f"{path} is not a file."


def _refuse_same_name(served: Sequence[ServedModel]) -> None:
    for position, model in enumerate(served):
        for other in served[:position]:
            if other.name == model.name:
                raise ModelError(
                    f"{model.archive} and {other.archive} both hold a model called {model.name!r}.",
                    hint="A deployment serves a name once; package one of them under another --name.",
                )


def _example(info: archive.ArchiveInfo) -> str | None:
    handler = info.config.get("handler")
    return handler.get("example") if isinstance(handler, dict) else None
