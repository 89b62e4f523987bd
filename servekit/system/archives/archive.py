"""Model archives in all forms that torch-model-archiver writes, and their one unpacked copy in the cache.

A zip (``NAME.mar``, deflated or stored), a ``NAME.tar.gz`` or a folder; told apart by what they are, not by
their names. Nothing in one is trusted before it is checked, nothing of it is run, and what TorchServe would
read differently from what was checked here is refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servekit.domain.model import name_problem, version_problem
from servekit.errors import ModelError, raise_together
from servekit.system import storage
from servekit.system.archives import cache as archive_cache
from servekit.system.archives.folder import FolderReader
from servekit.system.archives.names import HASHES, MANIFEST, BrokenError, Listing, Reader, identity, shown
from servekit.system.archives.tar import TarReader
from servekit.system.archives.texts import CONFIG_LIMIT, LIMITS, json_object, listed_hashes, shown_plain, yaml_mapping
from servekit.system.archives.zip import ZipReader

__all__ = ["HASHES", "MANIFEST", "ArchiveInfo", "open_archive", "read_member", "unpack"]

_SHOWN = 20
_ANEW = "Make it anew: servekit package"
_ALTERED = "The archive was altered or damaged; make it anew: servekit package"
_ODD = "Do not serve it unless you know why it looks like that."


@dataclass(frozen=True)
class ArchiveInfo:
    """An archive that passed the checks. ``config`` is its model-config.yaml, {} when it has none.

    ``size`` is what it takes unpacked, in bytes, and ``member_sizes`` is that by member. ``hashes`` maps member
    -> SHA-256 for archives of ours; None for foreign ones. ``form`` is "mar", "tgz" or "no-archive"; ``sha256``
    is the file's, or for a folder the digest that archive_folder describes. ``identity`` tells whether the file
    is still the one that was checked.
    """

    path: Path
    sha256: str
    size: int
    name: str
    version: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    members: tuple[str, ...]
    hashes: Mapping[str, str] | None
    form: str = "mar"
    member_sizes: Mapping[str, int] = field(default_factory=dict)
    identity: tuple[int, ...] = ()


def open_archive(path: Path, cache: Path | None = None) -> ArchiveInfo:
    """Read and check an archive without unpacking it. Raises ModelError with everything that is wrong.

    ``cache`` is the folder that ``unpack`` fills; it also remembers the SHA-256 of archives seen before.
    """
    with _opened(path) as reader:
        listing = reader.listing()
        if listing.complete and MANIFEST not in listing.sizes:
            what = {"mar": "a zip", "tgz": "a tar.gz"}.get(reader.form, "a folder")
            listing.problems.append(f"it holds no {MANIFEST}: it is {what}, but not a model archive.")
        _refuse(path, listing.problems, _ODD if listing.complete else _ANEW)
        manifest = json_object(MANIFEST, _text(reader, listing, MANIFEST))
        hashes, problems = None, _manifest_problems(manifest)
        if HASHES in listing.sizes:
            hashes, differing = listed_hashes(_text(reader, listing, HASHES), listing.sizes)
            problems += differing
        config, found = _config(reader, listing, manifest)
        _refuse(path, problems + found, _ALTERED if hashes is not None else "")
        sha256 = _sha256(reader, cache)
        _same_still(path, reader.identity)
        model = manifest["model"]
        return ArchiveInfo(
            path=path,
            sha256=sha256,
            size=sum(listing.sizes.values()),
            name=model["modelName"],
            version=str(model.get("modelVersion") or "1.0"),
            manifest=manifest,
            config=config,
            members=tuple(sorted(listing.sizes)),
            hashes=hashes,
            form=reader.form,
            member_sizes=listing.sizes,
            identity=reader.identity,
        )


def unpack(info: ArchiveInfo, cache: Path) -> Path:
    """The archive's folder in ``cache``, unpacked at most once however many deployments use it.

    ModelError when it is damaged or no longer what was checked; StorageError when the cache cannot hold it.
    """
    folder = cache / info.sha256
    with storage.explained(folder, info.size):
        cache.mkdir(parents=True, exist_ok=True)
        with archive_cache.locked(folder):
            if archive_cache.ready_copy(folder):
                return folder
            storage.check_room(folder, info.size)
            with _reopened(info) as reader:
                archive_cache.extract(reader, folder, info.member_sizes, info.hashes)
    return folder


def read_member(info: ArchiveInfo, name: str, limit: int) -> bytes:
    """A member's bytes, from memory. ModelError when it is absent, larger than ``limit`` bytes, or changed."""
    size = info.member_sizes.get(name)
    if size is None:
        raise ModelError(f"{info.path} holds no {shown_plain(name)}.")
    if size > limit:
        raise ModelError(f"{info.path}: {shown_plain(name)} is larger than {_bytes(limit)}.")
    with _reopened(info) as reader:
        return _content(reader, name, size)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Reader]:
    """The reader for what ``path`` is; what goes wrong with it becomes a ModelError."""
    with contextlib.ExitStack() as files:
        try:
            yield _reader(path, files)
        except BrokenError as error:
            raise ModelError(f"{path}: {error}", hint=_ANEW) from error


def _reader(path: Path, files: contextlib.ExitStack) -> Reader:
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            return FolderReader(path)
        if not stat.S_ISREG(kind):
            raise BrokenError("it is neither a file nor a folder.")
        descriptor = files.enter_context(path.open("rb", buffering=0)).fileno()
        packed = os.pread(descriptor, 2, 0) == b"\x1f\x8b"
        return TarReader(path, descriptor) if packed else ZipReader(path, descriptor)
    except OSError as error:
        raise BrokenError(f"it cannot be read: {error.strerror or error}.") from error


def _sha256(reader: Reader, cache: Path | None) -> str:
    try:
        return reader.sha256(cache)
    except OSError as error:
        raise BrokenError(f"it cannot be read: {error.strerror or error}.") from error


@contextlib.contextmanager
def _reopened(info: ArchiveInfo) -> Iterator[Reader]:
    with _opened(info.path) as reader:
        if (reader.form, reader.identity) != (info.form, info.identity):
            raise BrokenError("it changed after it was checked.")
        yield reader
        _same_still(info.path, info.identity)


def _same_still(path: Path, known: tuple[int, ...]) -> None:
    try:
        now = identity(path.stat())
    except OSError as error:
        raise BrokenError(f"it changed while it was read: {error.strerror or error}.") from error
    if known and now != known:
        raise BrokenError("it changed while it was read.")


def _refuse(path: Path, problems: Sequence[str], hint: str) -> None:
    """One ModelError for everything that is wrong; of very many only the first."""
    told = [f"{path}: {problem}" for problem in problems[:_SHOWN]]
    if len(problems) <= _SHOWN:
        raise_together(ModelError, told, hint=hint)
        return
    listed = "\n".join(f"  - {problem}" for problem in told)
    raise ModelError(f"{len(problems)} problems:\n{listed}\n  - and {len(problems) - _SHOWN} more", hint=hint)


def _text(reader: Reader, listing: Listing, member: str) -> bytes:
    limit = LIMITS.get(member, CONFIG_LIMIT)
    if listing.sizes[member] > limit:
        raise BrokenError(f"{shown_plain(member)} is larger than {_bytes(limit)}.")
    if member in listing.texts:
        return listing.texts[member]
    return _content(reader, member, listing.sizes[member])


def _content(reader: Reader, member: str, size: int) -> bytes:
    for _, blocks in reader.stream(frozenset([member])):
        data = bytearray()
        for block in blocks:
            data += block
            if len(data) > size:
                break
        if len(data) == size:
            return bytes(data)
    raise BrokenError(f"it changed after it was checked: {shown(member)} is not what it was.")


def _bytes(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit and not limit % (1 << 20) else f"{limit} bytes"


def _manifest_problems(manifest: Mapping[str, Any]) -> list[str]:
    model = manifest.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("modelName"), str) or "handler" not in model:
        return [f"{MANIFEST} names no model or no handler."]
    found = (name_problem(model["modelName"]), version_problem(str(model.get("modelVersion") or "1.0")))
    return [problem for problem in found if problem]


def _config(reader: Reader, listing: Listing, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """model-config.yaml, and what is wrong with it."""
    model = manifest.get("model")
    member = model.get("configFile") if isinstance(model, dict) else None
    if not member:
        return {}, []
    if not isinstance(member, str) or member not in listing.sizes:
        return {}, [f"the manifest names {shown_plain(str(member))}, which is not in the archive."]
    try:
        return yaml_mapping(member, _text(reader, listing, member)), []
    except BrokenError as error:
        return {}, [str(error)]
