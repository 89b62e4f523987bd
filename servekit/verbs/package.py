"""``package``: weights, model class, handler, labels and examples -> one archive, proven before it is written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servekit import __version__
from servekit.domain.model import (
    BUILTIN_HANDLERS,
    ModelSpec,
    name_problem,
    precision_problem,
    tolerance_problems,
    version_problem,
)
from servekit.domain.project import image_problems, tensor_problems
from servekit.domain.proof import Proof, Record
from servekit.errors import ConfigError, raise_together
from servekit.system import file_digest, storage
from servekit.system.archives import archive
from servekit.system.archives.members import Members, Source
from servekit.system.archives.zipstream import Written, ZipStream
from servekit.system.proofs import proof_file, scratch, stage
from servekit.system.trust import signing
from servekit.verbs import collect, intake, prove
from servekit.verbs.collect import Collected

SCHEMA = 1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Packed:
    """A finished archive. ``size`` in bytes; ``parameters`` None for a handler without a module that we know.

    ``sha256``, ``proof`` and ``record`` are None when the proof was skipped.
    """

    name: str
    version: str
    path: Path
    size: int
    parameters: int | None
    replaced: bool
    sha256: str | None = None
    proof: Path | None = None
    record: Record | None = None
    signature: Path | None = None


@dataclass(frozen=True)
class How:
    """How to package, apart from what: ``gpu`` as in ``prove.device``; ``sign`` a private key."""

    verify: bool = True
    gpu: str | None = None
    sign: Path | None = None
    vendor_wheels: bool = False
    python: str | None = None
    platform: str | None = None


def package(spec: ModelSpec, folder: Path, export_path: Path, progress: Progress, how: How | None = None) -> Packed:
    """Check and prove everything, then write ``export_path/NAME.mar`` whole or not at all. Raises ServekitError."""
    how = how or How()
    _check_words(spec, how)
    with storage.made(export_path), storage.explained(export_path, 0), scratch.folder(export_path) as work:
        taken = intake.take(spec, folder, work, progress)
        collected = collect.collect(spec, folder, taken, how, progress)
        collected.members.check()
        record = _prove(spec, collected, work, how, progress) if how.verify else None
        target = export_path / f"{spec.name}.mar"
        replaced = target.exists()
        # The old proof goes first: whatever happens now, no proof of another archive lies beside this one.
        proof_file.path_of(target).unlink(missing_ok=True)
        signing.path_of(target).unlink(missing_ok=True)
        size = write(target, collected.members, collected.facts)
    wheels = collect.vendor(collected, target, progress) if how.vendor_wheels else None
    if wheels:
        progress(f"{spec.name}: {len(wheels)} wheels in {wheels[0].parent}")
    packed = Packed(spec.name, spec.version, target, size, record.parameters if record else None, replaced)
    return _papers(packed, record, how, progress)


def _papers(packed: Packed, record: Record | None, how: How, progress: Progress) -> Packed:
    """The proof and the signature, which need the finished archive's SHA-256."""
    if record is None:
        progress(f"{packed.name}: --no-verify: nothing proves that this archive loads and answers.")
        if how.sign is None:
            return packed
    sha256, text = file_digest.sha256(packed.path), None
    packed = dataclasses.replace(packed, sha256=sha256)
    if record:
        path = proof_file.path_of(packed.path)
        text = proof_file.write(path, Proof(packed.name, packed.version, sha256, (record,)))
        packed = dataclasses.replace(packed, proof=path, record=record)
    if how.sign:
        path = signing.path_of(packed.path)
        signing.sign(sha256, text, how.sign, path)
        packed = dataclasses.replace(packed, signature=path)
    return packed


def _check_words(spec: ModelSpec, how: How) -> None:
    problems = [name_problem(spec.name), version_problem(spec.version), precision_problem(spec.precision)]
    if not spec.builtin_handler and not spec.handler.endswith(".py"):
        problems.append(f"handler {spec.handler!r} is neither {', '.join(BUILTIN_HANDLERS)} nor a .py file.")
    if spec.model and not (spec.model_file or "").endswith(".py"):
        problems.append(f"model {spec.model!r} must be FILE.py:Class.")
    if spec.handler == "image":
        problems += [message for _, message in image_problems(spec.image)]
    if spec.handler == "tensor":
        problems += tensor_problems(spec.tensor)
    if spec.weights is None and (spec.builtin_handler or spec.model):
        problems.append(f"{spec.name} has no weights; only a handler of your own can do without.")
    problems += tolerance_problems(spec.tolerance)
    if how.vendor_wheels and not spec.requirements:
        problems.append("--vendor-wheels fetches the wheels of --requirements; there are none.")
    if spec.keep_fp32 and spec.precision == "fp32":
        problems.append("keep_fp32 has no effect with precision fp32: every layer is in fp32 then.")
    raise_together(ConfigError, [problem for problem in problems if problem], hint="See: servekit package --help")


def _prove(spec: ModelSpec, collected: Collected, work: Path, how: How, progress: Progress) -> Record:
    folder = work / "archive"
    stage.lay_out(collected.members.files, folder)
    subject = prove.Subject(spec.name, folder, collected.handler, collected.config, collected.examples)
    return prove.record(subject, prove.device(how.gpu, progress), progress)


def write(target: Path, members: Members, facts: Mapping[str, Any]) -> int:
    """The archive: manifest first, hashes last, the rest sorted. Returns its size in bytes."""
    order = sorted(members.files, key=lambda place: (place != archive.MANIFEST, place))
    needed = members.size()
    with storage.explained(target, needed):
        target.parent.mkdir(parents=True, exist_ok=True)
        storage.check_room(target, needed)
        with ZipStream(target) as stream:
            written = [_add(stream, place, members.files[place]) for place in order]
            stream.add_bytes(archive.HASHES, _hashes(written, facts))
            return stream.finish()


def _add(stream: ZipStream, place: str, source: Source) -> Written:
    if isinstance(source, Path):
        return stream.add_file(place, source)
    return stream.add_bytes(place, source) if isinstance(source, bytes) else stream.add_pieces(place, source)


def _hashes(written: list[Written], facts: Mapping[str, Any]) -> bytes:
    listed = {member.name: {"sha256": member.sha256, "size": member.size} for member in written}
    content = {"schema": SCHEMA, "servekit": __version__, **facts, "members": listed}
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
