"""``list`` and ``prune``: what the store holds, and what nobody needs any more."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servekit.errors import ModelError, ServekitError
from servekit.system import deployments, project, storage
from servekit.system.archives import archive
from servekit.system.proofs import proof_file
from servekit.system.trust import signing
from servekit.verbs import find

# A start that is under way holds an unpacked archive that no deployment's record names yet.
_YOUNG_S = 3600.0


@dataclass(frozen=True)
class Stored:
    """One archive of the store. ``problem`` says why it cannot be used; then the rest is unknown."""

    name: str
    path: Path
    version: str = ""
    size: int = 0
    sha256: str = ""
    standing: str = ""
    signed: bool = False
    served_by: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Unneeded:
    """Something that can go, its size in bytes and why."""

    path: Path
    size: int
    why: str


def stored(root: Path) -> tuple[Stored, ...]:
    """The archives in model_store/, by name."""
    store = root / find.STORE
    states = deployments.states(root)
    cache = deployments.cache(root)
    found = []
    for stem in find.in_store(store):
        path = store / f"{stem}.mar"
        try:
            info = archive.open_archive(path, cache if cache.is_dir() else None)
            proof, note = proof_file.known(path, info.sha256, root)
        except ServekitError as error:
            found.append(Stored(stem, path, problem=error.message))
            continue
        users = tuple(state.name for state in states if any(model.sha256 == info.sha256 for model in state.models))
        standing = proof.standing() if proof else f"not proven{f' ({note})' if note else ''}"
        signed = signing.path_of(path).exists()
        found.append(Stored(info.name, path, info.version, path.stat().st_size, info.sha256, standing, signed, users))
    return tuple(found)


def unneeded(root: Path, *, archives: bool) -> tuple[Unneeded, ...]:
    """What ``prune`` would remove; with ``archives`` also those that servekit.toml and no deployment name."""
    return (*_orphans(root), *_unused_cache(root), *(_unused_archives(root) if archives else ()))


def remove(found: tuple[Unneeded, ...]) -> int:
    """Remove it; the bytes that came free."""
    for one in found:
        with storage.explained(one.path, 0):
            shutil.rmtree(one.path) if one.path.is_dir() else one.path.unlink(missing_ok=True)
    return sum(one.size for one in found)


def _orphans(root: Path) -> Iterator[Unneeded]:
    """Proofs and signatures whose archive is gone or another one."""
    store = root / find.STORE
    if not store.is_dir():
        return
    for path in sorted((*store.glob("*.proof.json"), *store.glob("*.sig.json"))):
        stem = path.name.removesuffix(".proof.json").removesuffix(".sig.json")
        if not any((store / f"{stem}{suffix}").exists() for suffix in (*find.SUFFIXES, "")):
            yield Unneeded(path, path.stat().st_size, "its archive is gone")


def _unused_cache(root: Path) -> Iterator[Unneeded]:
    cache = deployments.cache(root)
    used = {model.sha256 for state in deployments.states(root) for model in state.models}
    if not cache.is_dir():
        return
    for path in sorted(cache.iterdir()):
        if path.is_dir() and path.name not in used and time.time() - path.stat().st_mtime > _YOUNG_S:
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            yield Unneeded(path, size, "unpacked, and no deployment serves it")


def _unused_archives(root: Path) -> Iterator[Unneeded]:
    toml = project.load(root)
    if toml is None:
        raise ModelError(
            f"--archives keeps what servekit.toml names, and {root} has none.", hint="Delete archives by hand, or: init"
        )
    for one in stored(root):
        if toml.model(one.name) is None and not one.served_by and one.problem is None:
            for path in (one.path, proof_file.path_of(one.path), signing.path_of(one.path)):
                if path.exists():
                    yield Unneeded(path, path.stat().st_size, "neither servekit.toml nor a deployment names it")
