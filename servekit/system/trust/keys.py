"""ed25519 keys on the disk: made, read, named by their fingerprint. The one file that imports cryptography."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servekit.errors import ConfigError, ConflictError, HostError
from servekit.system import storage

PASSPHRASE = "SERVEKIT_KEY_PASSPHRASE"  # noqa: S105 - the name of a variable
"""The environment's variable with the passphrase of a private key; unset for a key without one."""


def generate(path: Path) -> str:
    """Write ``path`` (private, mode 0600) and ``path.pub``; the fingerprint. ConflictError for what exists."""
    cryptography = _cryptography()
    public_path = path.with_name(f"{path.name}.pub")
    for there in (path, public_path):
        if there.exists() or there.is_symlink():
            raise ConflictError(f"{there} exists: a key is never overwritten.", hint="Name another file.")
    private = cryptography.Ed25519PrivateKey.generate()
    words = os.environ.get(PASSPHRASE)
    serial = cryptography.serialization
    seal = serial.BestAvailableEncryption(words.encode()) if words else serial.NoEncryption()
    pem = private.private_bytes(serial.Encoding.PEM, serial.PrivateFormat.PKCS8, seal)
    public = private.public_key().public_bytes(serial.Encoding.PEM, serial.PublicFormat.SubjectPublicKeyInfo)
    with storage.explained(path, len(pem)):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_new(path, pem, 0o600)
        try:
            _write_new(public_path, public, 0o644)
        except OSError:
            path.unlink()
            raise
    return fingerprint(private.public_key())


def signer(path: Path) -> tuple[str, Callable[[bytes], bytes]]:
    """(fingerprint, the function that signs) of a private key. ConfigError for a file that is none."""
    cryptography = _cryptography()
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"key {path} cannot be read: {error.strerror}.", hint="Make one: servekit keygen PATH"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"key {path} can be read by others (mode {mode & 0o777:04o}).", hint=f"chmod 600 {path}")
    words = os.environ.get(PASSPHRASE)
    try:
        private = cryptography.serialization.load_pem_private_key(data, words.encode() if words else None)
    except TypeError as error:
        told = "needs a passphrase" if not words else "has no passphrase, and one is given"
        raise ConfigError(f"key {path} {told}.", hint=f"It is taken from the variable {PASSPHRASE}.") from error
    except Exception as error:  # its parsers raise ValueError, UnsupportedAlgorithm and more
        hint = "Make one: servekit keygen PATH"
        raise ConfigError(
            f"key {path} cannot be used: it is damaged, no private key, or sealed otherwise.", hint=hint
        ) from error
    if not isinstance(private, cryptography.Ed25519PrivateKey):
        raise ConfigError(f"key {path} is not an ed25519 key.", hint="Make one: servekit keygen PATH")
    return fingerprint(private.public_key()), private.sign


def verifier(path: Path) -> tuple[str, Callable[[bytes, bytes], bool]]:
    """(fingerprint, the function (signature, message) -> bool) of a public key, PEM or ``ssh-ed25519 AAAA...``."""
    cryptography = _cryptography()
    serial = cryptography.serialization
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"public key {path} cannot be read: {error.strerror}.") from error
    try:
        ssh = data.lstrip().startswith(b"ssh-")
        public = serial.load_ssh_public_key(data) if ssh else serial.load_pem_public_key(data)
    except Exception as error:
        raise ConfigError(
            f"public key {path} is neither PEM nor an ssh-ed25519 line.",
            hint="`servekit keygen PATH` writes it to PATH.pub; the private key does not belong here.",
        ) from error
    if not isinstance(public, cryptography.Ed25519PublicKey):
        raise ConfigError(f"public key {path} is not an ed25519 key.", hint="Make a pair: servekit keygen PATH")

    def good(signature: bytes, message: bytes) -> bool:
        try:
            public.verify(signature, message)
        except cryptography.InvalidSignature:
            return False
        return True

    return fingerprint(public), good


def fingerprint(public: Any) -> str:
    """``ed25519:`` and the first 16 hexadecimal digits of the SHA-256 of the raw public key."""
    return f"ed25519:{hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]}"


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Names:
    """What we use of cryptography, imported when it is first needed."""

    def __init__(self) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        self.InvalidSignature = InvalidSignature
        self.serialization = serialization
        self.Ed25519PrivateKey = ed25519.Ed25519PrivateKey
        self.Ed25519PublicKey = ed25519.Ed25519PublicKey


def _cryptography() -> _Names:
    try:
        return _Names()
    except ImportError as error:
        raise HostError(
            "Signatures need the package cryptography.", hint="Install it: pip install 'servekit[trust]'"
        ) from error
