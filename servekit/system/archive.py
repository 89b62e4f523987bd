"""Archives (.mar): what one holds, and its one unpacked copy in the content-addressed cache.

Nothing in an archive is trusted before it is checked: names that leave the folder, links, duplicates,
encryption and absurd expansion are refused, and our own archives' members are compared with their hashes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import lzma
import secrets
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from servekit.domain.model import name_problem, version_problem
from servekit.errors import ModelError, raise_together
from servekit.system import file_digest, storage

MANIFEST = "MAR-INF/MANIFEST.json"
HASHES = "MAR-INF/servekit.json"
_STAMP = ".servekit-stamp.json"
_CHUNK = 4 * 1024 * 1024
# A deflated member may shrink a thousandfold at most; what shrinks more is a bomb, not a model.
_MAX_RATIO = 1100
_MAX_TEXT = 16 * 1024 * 1024
# What zipfile and its decompressors raise for damaged bytes.
_DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    UnicodeDecodeError,
)


@dataclass(frozen=True)
class ArchiveInfo:
    """An archive that passed the checks. ``config`` is its model-config.yaml, {} when it has none.

    ``size`` is what it takes unpacked, in bytes. ``hashes`` maps member -> SHA-256 for archives of ours; None
    for foreign ones.
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


def open_archive(path: Path, cache: Path | None = None) -> ArchiveInfo:
    """Read and check an archive without unpacking it. Raises ModelError with everything that is wrong.

    ``cache`` is the folder that ``unpack`` fills; it also remembers the SHA-256 of archives seen before.
    """
    try:
        if problem := _no_zip(path):
            raise ModelError(f"{path} {problem}.", hint="Make it anew: servekit package")
        with zipfile.ZipFile(path) as archive:
            members = _checked(path, archive)
            manifest = _json(path, archive, MANIFEST)
            config = _config(path, archive, manifest)
            hashes = _hashes(path, archive) if HASHES in members else None
            size = sum(info.file_size for info in archive.infolist())
        sha256 = file_digest.sha256(path, cache)
    except _DAMAGE as error:
        raise ModelError(f"{path} is not a usable archive: {error}.", hint="Make it anew: servekit package") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    model = manifest.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("modelName"), str) or "handler" not in model:
        raise ModelError(f"{path}: {MANIFEST} names no model or no handler.")
    name, version = model["modelName"], str(model.get("modelVersion") or "1.0")
    problems = [problem for problem in (name_problem(name), version_problem(version)) if problem]
    raise_together(ModelError, [f"{path}: {problem}" for problem in problems])
    return ArchiveInfo(path, sha256, size, name, version, manifest, config, members, hashes)


def unpack(info: ArchiveInfo, cache: Path) -> Path:
    """The archive's folder in ``cache``, unpacked at most once however many deployments use it."""
    folder = cache / info.sha256
    with storage.explained(folder, info.size):
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f".{info.sha256}.lock"):
            if folder.is_dir():
                if _intact(folder):
                    return folder
                shutil.rmtree(folder)
            storage.check_room(folder, info.size)
            _extract(info, folder)
    return folder


def _no_zip(path: Path) -> str | None:
    """What is wrong with a file that is no zip, in better words than zipfile's; None for a zip."""
    if zipfile.is_zipfile(path):
        return None
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        return "is empty"
    return "is truncated: its end is missing" if start == b"PK" else "is not an archive: it is no zip"


def _checked(path: Path, archive: zipfile.ZipFile) -> tuple[str, ...]:
    problems: list[str] = []
    seen: set[str] = set()
    for info in archive.infolist():
        name = info.filename
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or not parts:
            problems.append(f"{path}: the member {name!r} would land outside the archive's folder.")
        if name in seen:
            problems.append(f"{path}: the member {name!r} is there twice.")
        seen.add(name)
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            problems.append(f"{path}: the member {name!r} is a link or a special file.")
        if info.flag_bits & 1:
            problems.append(f"{path}: the member {name!r} is encrypted.")
        if info.file_size > _MAX_RATIO * max(info.compress_size, 1):
            problems.append(f"{path}: the member {name!r} expands {info.file_size} bytes out of almost none.")
    nested = {str(above) for name in seen for above in PurePosixPath(name).parents}
    problems += [f"{path}: the member {name!r} is both a file and a folder." for name in sorted(seen & nested)]
    if sum(info.compress_size for info in archive.infolist()) > path.stat().st_size:
        problems.append(f"{path}: its members overlap: together they are larger than the file.")
    if MANIFEST not in seen:
        problems.append(f"{path} holds no {MANIFEST}: it is a zip, but not a model archive.")
    raise_together(ModelError, problems, hint="Do not serve it unless you know why it looks like that.")
    return tuple(sorted(name for name in seen if not name.endswith("/")))


def _read(path: Path, archive: zipfile.ZipFile, member: str) -> bytes:
    if archive.getinfo(member).file_size > _MAX_TEXT:
        raise ModelError(f"{path}: {member} is larger than {_MAX_TEXT >> 20} MiB.")
    return archive.read(member)


def _json(path: Path, archive: zipfile.ZipFile, member: str) -> dict[str, Any]:
    try:
        value = json.loads(_read(path, archive, member))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {member} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: {member} is not a JSON object.")
    return value


def _config(path: Path, archive: zipfile.ZipFile, manifest: Mapping[str, Any]) -> dict[str, Any]:
    model = manifest.get("model")
    member = model.get("configFile") if isinstance(model, dict) else None
    if not member:
        return {}
    try:
        value = yaml.safe_load(_read(path, archive, str(member)))
    except KeyError:
        raise ModelError(f"{path}: the manifest names {member}, which is not in the archive.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {member} is not YAML: {error}.") from error
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"{path}: {member} is not a YAML mapping.")
    return value or {}


def _hashes(path: Path, archive: zipfile.ZipFile) -> dict[str, str]:
    listed = _json(path, archive, HASHES).get("members")
    try:
        return {str(member): str(entry["sha256"]) for member, entry in listed.items()}  # type: ignore[union-attr]
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: {HASHES} lists no hashes.") from error


def _extract(info: ArchiveInfo, folder: Path) -> None:
    """Into a folder beside, then renamed: an interrupted unpacking leaves nothing that looks complete."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    for stale in folder.parent.glob(f".{folder.name}.*.partial"):  # we hold the lock: nobody writes there
        shutil.rmtree(stale)
    try:
        temporary.mkdir()
        temporary.chmod(0o755)  # whatever the umask: a container's user reads here too
        stamp = {}
        with zipfile.ZipFile(info.path) as archive:
            for member in info.members:
                target = temporary / member
                _make_parents(target.parent, temporary)
                _extract_member(info, archive, member, target)
                stamp[member] = _fingerprint(target)
        (temporary / _STAMP).write_text(json.dumps(stamp), encoding="utf-8")
        temporary.rename(folder)
    except _DAMAGE as error:
        raise ModelError(f"{info.path} is damaged: {error}.", hint="Make it anew: servekit package") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _make_parents(folder: Path, root: Path) -> None:
    if folder != root and not folder.is_dir():
        _make_parents(folder.parent, root)
        folder.mkdir()
        folder.chmod(0o755)


def _extract_member(info: ArchiveInfo, archive: zipfile.ZipFile, member: str, target: Path) -> None:
    digest = hashlib.sha256()
    with archive.open(member) as source, target.open("xb") as file:
        while block := source.read(_CHUNK):
            digest.update(block)
            file.write(block)
    target.chmod(0o444)  # shared by deployments: nobody edits it in place
    if info.hashes is not None and member != HASHES and info.hashes.get(member) != digest.hexdigest():
        raise ModelError(
            f"{info.path}: {member} is not what was packaged (its SHA-256 differs).",
            hint="The archive was altered or damaged; make it anew: servekit package",
        )


def _fingerprint(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _intact(folder: Path) -> bool:
    """Whether an unpacked copy is as it was left, by size and time of each file."""
    try:
        stamp = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
        return all(_fingerprint(folder / member) == mark for member, mark in stamp.items())
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a", encoding="ascii") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
