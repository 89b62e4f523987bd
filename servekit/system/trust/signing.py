"""``NAME.sig.json``: signatures over an archive and its proof, made and checked."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from servekit.domain import signature as nouns
from servekit.domain.signature import Signature, Signed, archive_message, proof_message
from servekit.errors import ModelError
from servekit.system import storage
from servekit.system.temporary_file import TemporaryFile
from servekit.system.trust import keys

_MAX = 64 * 1024
_SIGN = "Sign it: servekit verify NAME --sign KEY"


def path_of(archive: Path) -> Path:
    """The signature of ``NAME.mar`` (also ``NAME.tar.gz``, or a folder) is ``NAME.sig.json`` beside it."""
    name = archive.name
    for suffix in (".mar", ".tar.gz", ".tgz"):
        if name.endswith(suffix) and not archive.is_dir():
            name = name.removesuffix(suffix)
            break
    return archive.with_name(f"{name}.sig.json")


def sign(archive_sha256: str, proof: bytes | None, key: Path, target: Path) -> Signature:
    """Write ``target`` whole or not at all. ``proof``: the bytes of the proof's file, None where there is none."""
    fingerprint, signed = keys.signer(key)

    def one(sha256: str, message: bytes) -> Signed:
        return Signed(sha256, base64.b64encode(signed(message)).decode("ascii"))

    proof_sha256 = hashlib.sha256(proof).hexdigest() if proof is not None else None
    made = Signature(
        key=fingerprint,
        archive=one(archive_sha256, archive_message(archive_sha256)),
        proof=one(proof_sha256, proof_message(archive_sha256, proof_sha256)) if proof_sha256 else None,
    )
    text = (json.dumps(nouns.to_dict(made), indent=1) + "\n").encode()
    with storage.explained(target, len(text)):
        temporary = TemporaryFile(target)
        try:
            os.write(temporary.descriptor, text)
            temporary.commit()
        finally:
            temporary.discard()
    return made


def read(path: Path) -> dict[str, Any] | None:
    """The signature's file as it is, unchecked, for those who only look; None when there is none."""
    found = _read(path)
    return None if found is None else nouns.to_dict(found)


def check(archive: Path, archive_sha256: str, proof: bytes | None, public_key: Path) -> Signature:
    """Raise ModelError unless ``public_key`` signed exactly this archive and, where there is one, this proof."""
    wanted, good = keys.verifier(public_key)
    path = path_of(archive)
    found = _read(path)
    if found is None:
        raise ModelError(f"{archive} is not signed: there is no {path.name}.", hint=_SIGN)
    if found.key != wanted:
        raise ModelError(f"{archive} is signed by {found.key}, not by {wanted} ({public_key}).")
    if found.archive.sha256 != archive_sha256:
        raise ModelError(f"{archive} was altered after it was signed: its SHA-256 is not the signed one.")
    if not good(_bytes(found.archive), archive_message(archive_sha256)):
        raise ModelError(f"{path}: the signature of the archive is not that of {wanted}.")
    if proof is not None:
        _check_proof(path, archive, found, archive_sha256, hashlib.sha256(proof).hexdigest(), good)
    elif found.proof is not None:
        raise ModelError(f"{archive}: its signed proof is missing.", hint="Prove and sign it anew: servekit verify")
    return found


def _check_proof(
    path: Path, archive: Path, found: Signature, archive_sha256: str, proof_sha256: str, good: Any
) -> None:
    if found.proof is None:
        raise ModelError(f"{archive}: the archive is signed, but its proof is not.", hint=_SIGN)
    if found.proof.sha256 != proof_sha256:
        raise ModelError(f"{archive}: its proof was changed after it was signed.", hint=_SIGN)
    if not good(_bytes(found.proof), proof_message(archive_sha256, proof_sha256)):
        raise ModelError(f"{path}: the signature of the proof is not that of {found.key}.")


def _bytes(signed: Signed) -> bytes:
    return base64.b64decode(signed.signature)


def _read(path: Path) -> Signature | None:
    try:
        if path.stat().st_size > _MAX:
            raise ModelError(f"{path} is no signature: it is larger than {_MAX >> 10} KiB.")
        return nouns.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no signature that this servekit reads: {error}.", hint=_SIGN) from error
