"""A signature over an archive and its proof: what is signed, and the small file that says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[A-Za-z0-9+/]{86}==")  # 64 bytes in base64
_KEY = re.compile(r"ed25519:[0-9a-f]{16}")


@dataclass(frozen=True)
class Signed:
    """One signature, base64, and the SHA-256 of the file that it is about."""

    sha256: str
    signature: str


@dataclass(frozen=True)
class Signature:
    """The content of ``NAME.sig.json``. ``key`` is the fingerprint; ``proof`` None where there was none."""

    key: str
    archive: Signed
    proof: Signed | None


def archive_message(archive_sha256: str) -> bytes:
    """What is signed for an archive. The first line keeps a signature from meaning anything else."""
    return f"servekit archive v1\n{archive_sha256}\n".encode()


def proof_message(archive_sha256: str, proof_sha256: str) -> bytes:
    """What is signed for a proof: bound to its archive, so that it cannot be laid beside another one."""
    return f"servekit proof v1\n{archive_sha256}\n{proof_sha256}\n".encode()


def to_dict(signature: Signature) -> dict[str, Any]:
    return {"schema": SCHEMA, **asdict(signature)}


def from_dict(data: Any) -> Signature:
    """Raises ValueError, in words, for what is no signature of this schema."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        raise ValueError(f"its schema is {found!r}; this servekit reads {SCHEMA}")
    key, proof = data.get("key"), data.get("proof")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError("it names no ed25519 key")
    return Signature(key, _signed("archive", data.get("archive")), None if proof is None else _signed("proof", proof))


def _signed(what: str, data: Any) -> Signed:
    sha256 = data.get("sha256") if isinstance(data, Mapping) else None
    signature = data.get("signature") if isinstance(data, Mapping) else None
    if not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise ValueError(f"its {what} has no SHA-256")
    if not (isinstance(signature, str) and _SIGNATURE.fullmatch(signature)):
        raise ValueError(f"its {what} has no signature of 64 bytes")
    return Signed(sha256, signature)
