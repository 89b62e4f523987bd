"""``NAME.proof.json``: beside the archive; and, where that folder is not ours to write, in the project."""

from __future__ import annotations

import json
import os
from pathlib import Path

from servekit.domain import proof
from servekit.domain.proof import Proof
from servekit.errors import ModelError
from servekit.system import storage
from servekit.system.temporary_file import TemporaryFile

_MAX = 64 * 1024 * 1024


def path_of(archive: Path) -> Path:
    """The proof of ``NAME.mar`` (also ``NAME.tar.gz``, or a folder) is ``NAME.proof.json`` beside it."""
    name = archive.name
    for suffix in (".mar", ".tar.gz", ".tgz"):
        if name.endswith(suffix) and not archive.is_dir():
            name = name.removesuffix(suffix)
            break
    return archive.with_name(f"{name}.proof.json")


def read(path: Path) -> Proof | None:
    """The proof in ``path``; None when there is no such file. ModelError for a file that is none."""
    try:
        if path.stat().st_size > _MAX:
            raise ModelError(f"{path} is no proof: it is larger than {_MAX >> 20} MiB.")
        data = json.loads(path.read_text(encoding="utf-8"))
        return proof.from_dict(data)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}" if isinstance(error, (KeyError, TypeError, AttributeError)) else error
        raise ModelError(
            f"{path} is no proof that this servekit reads: {said}.",
            hint="Delete it and make it anew: servekit verify NAME.mar",
        ) from error


def of(archive: Path, sha256: str) -> tuple[Proof | None, str | None]:
    """The proof of exactly this archive, and what to say when the file beside it belongs to another one."""
    path = path_of(archive)
    found = read(path)
    if found is None:
        return None, None
    if found.sha256 != sha256:
        return None, f"{path.name} is the proof of another archive ({found.sha256[:12]}, not {sha256[:12]})."
    return found, None


def local(root: Path, sha256: str) -> Path:
    """Where records go that cannot lie beside their archive."""
    return root / ".servekit" / "proofs" / f"{sha256}.proof.json"


def known(archive: Path, sha256: str, root: Path) -> tuple[Proof | None, str | None]:
    """Everything that is proven of this archive: beside it, and in the project's own folder."""
    beside, note = of(archive, sha256)
    here = read(local(root, sha256))
    if beside is None or here is None:
        return beside or here, note
    for record in here.records:
        beside = beside.with_record(record)
    return beside, note


def write(path: Path, found: Proof) -> bytes:
    """Write it whole or not at all; return its bytes."""
    text = (json.dumps(proof.to_dict(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    with storage.explained(path, len(text)):
        temporary = TemporaryFile(path)
        try:
            os.write(temporary.descriptor, text)
            temporary.commit()
        finally:
            temporary.discard()
    return text
