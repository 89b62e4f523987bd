"""Which models a deployment serves, and what each of them gets: workers, batch, threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from servekit.domain.deployment import ServedModel
from servekit.domain.gpu import GpuPlan
from servekit.domain.project import Project
from servekit.errors import ModelError, raise_together
from servekit.system import deployments
from servekit.system.archives import archive
from servekit.system.archives.archive import ArchiveInfo
from servekit.verbs import find, verify


def archives(names: Sequence[str], toml: Project, root: Path, *, unpack: bool) -> tuple[ArchiveInfo, ...]:
    """Read the archives of ``names``.

    A name stands for ``model_store/NAME.mar``; a path (to a .mar, a .tar.gz or a folder) for itself. No name at
    all means every model of servekit.toml, or without that file everything in the store.
    """
    # A dry run leaves no note of the hashes it computed.
    cache = deployments.cache(root) if unpack else None
    return tuple(archive.open_archive(path, cache) for path in _paths(names, toml, root))


def models(
    infos: Sequence[ArchiveInfo], toml: Project, root: Path, gpus: GpuPlan, *, unpack: bool
) -> tuple[tuple[ServedModel, ...], tuple[str, ...]]:
    """What each archive gets (and its unpacked folder); also what the user should know about it.

    Order does not matter: devices are always explicit.
    """
    cache = deployments.cache(root)
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
                example=next(iter(verify.examples(info)), None),
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
    store = root / find.STORE
    by_path = bool(names) and all(map(find.is_path, names))
    there = [] if by_path else find.in_store(store)  # archives named by path do not need the store
    wanted = list(names) or [model.name for model in toml.models] or there
    if not wanted:
        raise ModelError(f"There is nothing to serve: {store} holds no .mar.", hint="Make one: servekit package")
    paths: list[Path] = []
    problems: list[str] = []
    for name in dict.fromkeys(wanted):
        path = find.path_of(name, root)
        if path.resolve() in {known.resolve() for known in paths}:
            continue  # said twice, once by name and once by path
        paths.append(path)
        if problem := find.problem(path):
            problems.append(f"{name}: {problem}")
    listed = f"In the store: {', '.join(there)}. " if there else ""
    raise_together(ModelError, problems, hint=f"{listed}Make one with: servekit package")
    return paths


def _refuse_same_name(served: Sequence[ServedModel]) -> None:
    for position, model in enumerate(served):
        for other in served[:position]:
            if other.name == model.name:
                raise ModelError(
                    f"{model.archive} and {other.archive} both hold a model called {model.name!r}.",
                    hint="A deployment serves a name once; package one of them under another --name.",
                )
