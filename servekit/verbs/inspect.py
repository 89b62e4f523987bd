"""``inspect``: everything an archive says about itself, and what is proven of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servekit.domain import traps
from servekit.domain.proof import Proof
from servekit.errors import ModelError
from servekit.system import deployments
from servekit.system.archives import archive
from servekit.system.proofs import proof_file
from servekit.system.trust import signing
from servekit.verbs import collect, find

_MAX_TEXT = 4 * 1024 * 1024


@dataclass(frozen=True)
class Inspected:
    """``ours`` holds MAR-INF/servekit.json without its members, {} for a foreign archive. Sizes in bytes."""

    path: Path
    form: str
    name: str
    version: str
    sha256: str
    size: int
    manifest: dict[str, Any]
    config: dict[str, Any]
    members: dict[str, int]
    ours: dict[str, Any]
    card: str | None
    lock: bool
    proof: Proof | None
    notes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    signature: dict[str, Any] | None = field(default=None)


def inspect(said: str, root: Path) -> Inspected:
    """Read, unpack nothing, execute nothing. Raises ModelError for what is no sound archive."""
    info = find.opened(said, root, deployments.cache(root) if deployments.cache(root).is_dir() else None)
    proof, note = proof_file.known(info.path, info.sha256, root)
    ours: dict[str, Any] = {}
    if archive.HASHES in info.members:
        ours = json.loads(archive.read_member(info, archive.HASHES, _MAX_TEXT * 16))
        ours.pop("members", None)
    card = None
    if collect.CARD in info.members:
        card = archive.read_member(info, collect.CARD, _MAX_TEXT).decode("utf-8", "replace")
    signature = signing.read(signing.path_of(info.path))
    return Inspected(
        path=info.path,
        form=info.form,
        name=info.name,
        version=info.version,
        sha256=info.sha256,
        size=info.path.stat().st_size if info.path.is_file() else info.size,
        manifest=dict(info.manifest),
        config=dict(info.config),
        members=dict(info.member_sizes),
        ours=ours,
        card=card,
        lock=collect.LOCK in info.members,
        proof=proof,
        notes=(note,) if note else (),
        hints=_hints(info),
        signature=signature,
    )


def _hints(info: archive.ArchiveInfo) -> tuple[str, ...]:
    """Known traps in the archive's own Python files, the vendored runtime left out."""
    told: list[str] = []
    for member in info.members:
        runtime = member.startswith("servekit_worker/") or member in (
            "image_handler.py",
            "tensor_handler.py",
            "text_handler.py",
        )
        if not member.endswith(".py") or (runtime and archive.HASHES in info.members):
            continue
        try:
            source = archive.read_member(info, member, _MAX_TEXT).decode("utf-8")
        except (ModelError, UnicodeDecodeError):
            continue
        told += [
            f"{member}:{trap.line}: {trap.message} {trap.hint} [{trap.code}]" for trap in traps.find(source, member)
        ]
    return tuple(told)
