"""verify, inspect, list and prune, on archives of ours and of others; and the Python function."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import servekit
from servekit.cli.main import cli, main
from servekit.domain.model import TensorOptions
from servekit.errors import ConfigError, HostError, ModelError
from servekit.system.archives import archive
from servekit.system.proofs import proof_file
from servekit.system.trust import keys, lock, signing
from servekit.verbs import store, trusted
from servekit.verbs.inspect import inspect
from servekit.verbs.verify import verify

ARCHIVER = "from model_archiver.model_packaging import generate_model_archive as g; g()"
# As people write them for torch-model-archiver: on BaseHandler, one forward pass a batch.
FOREIGN = """
import json
import torch
from ts.torch_handler.base_handler import BaseHandler

class Summer(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("body") or row.get("data") for row in data]
        return torch.tensor([json.loads(row) if isinstance(row, (bytes, bytearray)) else row for row in rows])
    def postprocess(self, output):
        return output.tolist()
"""
NET = "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one proven archive, made by the Python function."""
    root = tmp_path_factory.mktemp("project")
    torch.manual_seed(0)
    torch.save(torch.nn.Linear(3, 2).state_dict(), root / "net.pt")
    (root / "net.py").write_text(NET)
    (root / "e.json").write_text("[1.0, 2.0, 3.0]")
    (root / "card.md").write_text("# Net\nAdds things up.\n")
    made = servekit.package(
        "net.pt",
        name="net",
        model="net.py:Net",
        handler="tensor",
        tensor=TensorOptions((3,)),
        examples=["e.json"],
        meta={"git_commit": "4f2c1d0", "accuracy": "0.97"},
        card="card.md",
        root=root,
    )
    assert made.record is not None and made.record.chosen == "fp32"
    return root


@pytest.fixture
def root(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "project"))


def test_a_second_record_on_the_same_place_replaces_the_first(root: Path) -> None:
    path = root / "model_store" / "net.mar"
    before = path.read_bytes()
    first = proof_file.read(proof_file.path_of(path))
    found = verify("net", root, lambda _: None, gpu="none", sign=None)
    assert path.read_bytes() == before, "the archive is never touched"
    again = proof_file.read(found.proof)
    assert first and again and len(again.records) == 1
    assert again.records[0].examples == first.records[0].examples, "the same answers, to the last digit"


def test_a_store_that_cannot_be_written_keeps_the_record_in_the_project(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof_file.path_of(root / "model_store" / "net.mar").unlink()
    real = proof_file.write

    def refuse(path: Path, proof: Any) -> bytes:
        if path.parent.name == "model_store":
            from servekit.errors import StorageError

            raise StorageError(f"{path} cannot be written: Read-only file system.")
        return real(path, proof)

    monkeypatch.setattr(proof_file, "write", refuse)
    said: list[str] = []
    found = verify("net", root, said.append, gpu="none", sign=None)
    assert found.proof.parent == root / ".servekit" / "proofs"
    assert "Read-only file system. The record stays in this project." in "\n".join(said)
    known = inspect("net", root).proof
    assert known is not None and known.records == (found.record,)


def test_the_record_of_another_archive_does_not_count(root: Path) -> None:
    path = proof_file.path_of(root / "model_store" / "net.mar")
    path.write_text(path.read_text().replace('"sha256": "', '"sha256": "0', 1))
    assert inspect("net", root).proof is None
    assert "is the proof of another archive" in inspect("net", root).notes[0]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 9}', "[" * 99_999, '{"schema": 1, "archive": 3}'])
def test_a_proof_that_is_none_is_said(root: Path, content: str) -> None:
    proof_file.path_of(root / "model_store" / "net.mar").write_text(content)
    with pytest.raises(ModelError, match="is no proof that this servekit reads"):
        inspect("net", root)


def test_inspect_tells_everything_and_runs_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    result = CliRunner().invoke(cli, ["inspect", "net"])
    assert result.exit_code == 0, result.output
    for told in (
        *("net 1.0", "made by servekit", "git_commit", "4f2c1d0", "accuracy", "parameters", "FLOPs per item"),
        *("net.safetensors", "proven on CPU", "not signed", "Adds things up.", "batchSize: 8"),
    ):
        assert told in result.output
    data = json.loads(CliRunner().invoke(cli, ["inspect", "net", "--json"]).output)
    assert data["members"]["net.py"] == len(NET)
    assert data["proof"]["records"][0]["precisions"][0]["precision"] == "fp32"


def test_list_and_prune(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (found,) = store.stored(root)
    assert (found.name, found.signed, found.served_by, found.problem) == ("net", False, (), None)
    assert found.standing.startswith("proven on CPU")
    (root / "model_store" / "bad.mar").write_text("hello")
    assert [one.problem is None for one in store.stored(root)] == [False, True]
    (root / "model_store" / "gone.proof.json").write_text("{}")
    (root / "model_store" / "gone.sig.json").write_text("{}")
    info = archive.open_archive(root / "model_store" / "net.mar")
    unpacked = archive.unpack(info, root / ".servekit" / "cache")
    monkeypatch.setattr(store, "_YOUNG_S", -1.0)
    names = {one.path.name for one in store.unneeded(root, archives=False)}
    assert names == {"gone.proof.json", "gone.sig.json", unpacked.name}
    with pytest.raises(ModelError, match=r"--archives keeps what servekit\.toml names"):
        store.unneeded(root, archives=True)
    (root / "servekit.toml").write_text("schema = 1\n")
    (root / "model_store" / "bad.mar").unlink()
    result = CliRunner().invoke(cli, ["prune", "--archives"])
    assert "would remove" in result.output and (root / "model_store" / "net.mar").exists()
    result = CliRunner().invoke(cli, ["prune", "--archives", "--yes"])
    assert "are free again" in result.output
    assert [path.name for path in (root / "model_store").iterdir()] == []
    assert not unpacked.exists()


def test_the_unsigned_and_the_altered_are_not_served(root: Path) -> None:
    keys.generate(root / "key")
    info = archive.open_archive(root / "model_store" / "net.mar")
    with pytest.raises(ModelError, match="is not signed"):
        trusted.check((info,), root / "key.pub", "local")
    verify("net", root, lambda _: None, gpu="none", sign=root / "key")
    trusted.check((info,), root / "key.pub", "local")
    verify("net", root, lambda _: None, gpu="none", sign=None, public_key=root / "key.pub")
    with pytest.raises(ModelError, match="its proof was changed after it was signed"):
        trusted.check((info,), root / "key.pub", "local")
    data = bytearray(info.path.read_bytes())
    place = data.index(b"super().__init__(3, 2)")
    data[place : place + 5] = b"other"
    info.path.write_bytes(data)
    altered = archive.open_archive(info.path)
    with pytest.raises(ModelError, match="was altered after it was signed"):
        trusted.check((altered,), root / "key.pub", "local")
    signing.path_of(info.path).unlink()


def test_an_environment_that_is_not_the_locked_one_does_not_serve(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "r.txt").write_text("numpy\n")
    locked = servekit.package(
        "net.pt", name="locked", model="net.py:Net", requirements="r.txt", verify=False, root=root
    )
    info = archive.open_archive(locked.path)
    assert {"requirements.lock", "MAR-INF/sbom.cdx.json"} <= set(info.members)
    (package,) = lock.parse(archive.read_member(info, "requirements.lock", 10**6).decode()).packages
    monkeypatch.setattr(lock, "installed", lambda: {"numpy": package.version})
    trusted.check((info,), None, "local")
    monkeypatch.setattr(lock, "installed", lambda: {"numpy": "1.0"})
    with pytest.raises(HostError, match=f"locked: numpy {package.version} is locked, and 1.0 is installed"):
        trusted.check((info,), None, "local")
    trusted.check((info,), None, "docker")


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "foreign"
    folder.mkdir()
    torch.manual_seed(0)
    torch.save(torch.nn.Linear(3, 2).state_dict(), folder / "net.pt")
    (folder / "net.py").write_text(NET)
    (folder / "summer.py").write_text(FOREIGN)
    (folder / "c.yaml").write_text("batchSize: 4\n")
    yield folder


@pytest.mark.parametrize(
    ("form", "name", "kind"),
    [
        ("default", "net.mar", "mar"),
        ("zip-store", "net.mar", "mar"),
        ("tgz", "net.tar.gz", "tgz"),
        ("no-archive", "net", "no-archive"),
    ],
)
def test_what_torch_model_archiver_wrote(foreign: Path, form: str, name: str, kind: str) -> None:
    options = ["--model-name", "net", "--version", "1.0", "--serialized-file", "net.pt", "--model-file", "net.py"]
    options += ["--handler", "summer.py", "--config-file", "c.yaml", "--export-path", str(foreign)]
    options += ["--archive-format", form]
    subprocess.run((sys.executable, "-c", ARCHIVER, *options), cwd=foreign, check=True, timeout=120)
    info = archive.open_archive(foreign / name)
    assert (info.name, info.form, info.hashes) == ("net", kind, None)
    said: list[str] = []
    found = verify(str(foreign / name), foreign, said.append, gpu="none", sign=None)
    assert found.record.chosen is None
    assert found.record.reason == "nothing was asked of it" or "not one of servekit's" in found.record.reason
    assert found.proof == foreign / "net.proof.json"
    assert any("there is no example" in line for line in said)
    shown = inspect(str(foreign / name), foreign)
    assert (shown.form, shown.ours) == (kind, {})


def test_the_function_has_the_commands_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'token' cannot be a model name"):
        servekit.package(None, name="token", handler="h.py", root=tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = servekit.nothing
    assert dataclasses.is_dataclass(store.Stored)


def test_every_command_of_the_table_can_be_called(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("verify", "inspect", "list", "prune", "keygen"):
        with pytest.raises(SystemExit) as exit_:
            main([name, "--help"])
        assert exit_.value.code == 0
        assert "Examples:" in capsys.readouterr().out
