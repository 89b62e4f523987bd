"""``verify``: prove an archive on this host; the record is added beside it, the archive never touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from servekit.domain.gpu import Gpu
from servekit.domain.proof import Proof, Record
from servekit.errors import StorageError
from servekit.system import deployments, storage
from servekit.system.archives import archive
from servekit.system.archives.archive import ArchiveInfo
from servekit.system.proofs import proof_file, scratch, stage
from servekit.system.trust import signing
from servekit.verbs import find, prove

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Verified:
    """What was proven now, and the file that holds it."""

    name: str
    version: str
    archive: Path
    sha256: str
    record: Record
    proof: Path
    signature: Path | None


def verify(
    said: str, root: Path, progress: Progress, *, gpu: str | None, sign: Path | None, public_key: Path | None = None
) -> Verified:
    """Prove the archive called ``said``. ``gpu`` as in ``prove.device``. Raises ServekitError."""
    cache = deployments.cache(root)
    info = find.opened(said, root, cache)
    known, note = proof_file.of(info.path, info.sha256)
    if note:
        progress(f"{info.name}: {note} It is replaced.")
    if public_key:
        proof = proof_file.path_of(info.path)
        signing.check(info.path, info.sha256, proof.read_bytes() if known else None, public_key)
        progress(f"{info.name}: signed, and unchanged since.")
    made = measure(info, root, prove.device(gpu, progress), progress)
    path, text = save(info, root, made, progress)
    signature = None
    if sign:
        signature = signing.path_of(info.path)
        signing.sign(info.sha256, text, sign, signature)
    elif signing.path_of(info.path).exists():
        progress(f"{info.name}: the proof grew since it was signed; sign it anew: servekit verify {said} --sign KEY")
    return Verified(info.name, info.version, info.path, info.sha256, made, path, signature)


def measure(
    info: ArchiveInfo, root: Path, gpu: Gpu | None, progress: Progress, budget_s: float | None = None
) -> Record:
    """One record of ``info`` on ``gpu``, unpacked into the project's cache."""
    unpacked = archive.unpack(info, deployments.cache(root))
    with storage.explained(deployments.folder(root), 0), scratch.folder(deployments.folder(root)) as work:
        folder = work / "archive"
        stage.links(unpacked, folder)
        subject = prove.Subject(info.name, folder, str(info.manifest["model"]["handler"]), info.config, examples(info))
        return prove.record(subject, gpu, progress, budget_s=budget_s)


def examples(info: ArchiveInfo) -> tuple[str, ...]:
    """The examples that an archive of ours carries."""
    section = info.config.get("handler")
    if not isinstance(section, dict):
        return ()
    said = section.get("examples") or ([section["example"]] if section.get("example") else [])
    return tuple(str(example) for example in said)


def save(info: ArchiveInfo, root: Path, made: Record, progress: Progress, *, beside: bool = True) -> tuple[Path, bytes]:
    """Add a record beside the archive, or in the project where that folder cannot be, or must not be, written."""
    if beside:
        known, _ = proof_file.of(info.path, info.sha256)
        path = proof_file.path_of(info.path)
        try:
            return path, proof_file.write(path, _grown(known, info, made))
        except StorageError as error:
            progress(f"{info.name}: {error.message} The record stays in this project.")
    path = proof_file.local(root, info.sha256)
    with storage.explained(path, 0):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path, proof_file.write(path, _grown(proof_file.read(path), info, made))


def _grown(known: Proof | None, info: ArchiveInfo, made: Record) -> Proof:
    return (known or Proof(info.name, info.version, info.sha256)).with_record(made)
