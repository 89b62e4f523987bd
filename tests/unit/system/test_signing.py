"""Signatures: who signed what, and everything that must be noticed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from servekit.errors import ConfigError, ConflictError, ModelError, ServekitError
from servekit.system.trust import keys, signing

SHA = "a" * 64
PROOF = b'{"schema": 1}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.mar").write_bytes(b"archive")
    keys.generate(tmp_path / "key")
    return tmp_path


def sign(folder: Path, proof: bytes | None = PROOF) -> None:
    signing.sign(SHA, proof, folder / "key", signing.path_of(folder / "m.mar"))


def check(folder: Path, sha256: str = SHA, proof: bytes | None = PROOF, key: str = "key.pub") -> None:
    signing.check(folder / "m.mar", sha256, proof, folder / key)


def refused(folder: Path, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ModelError) as caught:
        check(folder, *args, **kwargs)
    return caught.value.message


@pytest.mark.parametrize("proof", [PROOF, None])
def test_signed_and_unchanged(folder: Path, proof: bytes | None) -> None:
    sign(folder, proof)
    check(folder, proof=proof)


def test_the_private_key_is_its_owners_alone(folder: Path) -> None:
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    before = (folder / "key").read_bytes()
    with pytest.raises(ConflictError, match="never overwritten"):
        keys.generate(folder / "key")
    assert (folder / "key").read_bytes() == before
    (folder / "key").chmod(0o640)
    with pytest.raises(ConfigError, match=r"can be read by others \(mode 0640\)"):
        sign(folder)


def test_a_link_in_the_keys_place_is_not_followed(folder: Path) -> None:
    (folder / "other").symlink_to(folder / "elsewhere")
    with pytest.raises(ConflictError):
        keys.generate(folder / "other")
    assert not (folder / "elsewhere").exists()


def test_unsigned(folder: Path) -> None:
    assert "is not signed: there is no m.sig.json" in refused(folder)


def test_altered(folder: Path) -> None:
    sign(folder)
    assert "was altered after it was signed" in refused(folder, sha256="b" * 64)
    assert "its proof was changed after it was signed" in refused(folder, proof=PROOF + b" ")
    assert "its signed proof is missing" in refused(folder, proof=None)
    sign(folder, None)
    assert "the archive is signed, but its proof is not" in refused(folder)


def test_another_key(folder: Path) -> None:
    sign(folder)
    keys.generate(folder / "their")
    assert "is signed by ed25519:" in refused(folder, key="their.pub")


def test_a_signature_by_another_key_under_the_right_name(folder: Path) -> None:
    """The fingerprint in the file is only a claim."""
    keys.generate(folder / "their")
    sign(folder)
    path = signing.path_of(folder / "m.mar")
    right = json.loads(path.read_text())
    signing.sign(SHA, PROOF, folder / "their", path)
    forged = json.loads(path.read_text()) | {"key": right["key"]}
    path.write_text(json.dumps(forged))
    assert "the signature of the archive is not that of ed25519:" in refused(folder)
    path.write_text(json.dumps(forged | {"archive": right["archive"]}))
    assert "the signature of the proof is not that of ed25519:" in refused(folder)


def test_the_signature_of_an_archive_is_none_of_a_proof(folder: Path) -> None:
    sign(folder)
    path = signing.path_of(folder / "m.mar")
    data = json.loads(path.read_text())
    data["proof"]["signature"] = data["archive"]["signature"]
    path.write_text(json.dumps(data))
    assert "the signature of the proof" in refused(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{",
        b"[]",
        b"3",
        b"{}",
        b'{"schema": 2}',
        b'{"schema": 1, "key": "rsa:0"}',
        b'{"schema": 1, "key": "ed25519:0123456789abcdef"}',
        b'{"schema": 1, "key": "ed25519:0123456789abcdef", "archive": []}',
        b'{"schema": 1, "key": "ed25519:0123456789abcdef", "archive": {"sha256": "zz", "signature": ""}}',
        b"[" * 50_000,
        b" " * 70_000,
    ],
)
def test_no_signature_at_all(folder: Path, content: bytes) -> None:
    signing.path_of(folder / "m.mar").write_bytes(content)
    assert "is no signature" in refused(folder)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_keys_that_are_none(folder: Path, content: bytes) -> None:
    (folder / "bad").write_bytes(content)
    (folder / "bad").chmod(0o600)
    for use in (lambda: keys.signer(folder / "bad"), lambda: keys.verifier(folder / "bad")):
        with pytest.raises(ConfigError):
            use()
    with pytest.raises(ConfigError, match="cannot be read"):
        keys.verifier(folder / "absent")


def test_an_rsa_key_is_refused(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(65537, 2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "rsa").write_bytes(pem)
    (folder / "rsa").chmod(0o600)
    with pytest.raises(ConfigError, match="is not an ed25519 key"):
        keys.signer(folder / "rsa")
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "rsa.pub").write_bytes(public)
    with pytest.raises(ConfigError, match="is not an ed25519 key"):
        keys.verifier(folder / "rsa.pub")


def test_the_public_key_of_ssh(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    public = serialization.load_pem_public_key((folder / "key.pub").read_bytes())
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "ssh.pub").write_bytes(line + b" me@host\n")
    sign(folder)
    check(folder, key="ssh.pub")


def test_a_passphrase(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(keys.PASSPHRASE, "right")
    keys.generate(folder / "sealed")
    keys.signer(folder / "sealed")
    for words in ("wrong", ""):
        monkeypatch.setenv(keys.PASSPHRASE, words)
        with pytest.raises(ServekitError):
            keys.signer(folder / "sealed")
    assert b"ENCRYPTED" in (folder / "sealed").read_bytes()
    assert os.environ[keys.PASSPHRASE] == ""
