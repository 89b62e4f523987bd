"""Files that earlier versions of servekit wrote stay readable. tests/data/ holds them as they were written.

schema-1 is of the first version, before proofs; schema-2 of the one that made the first proof. A new schema adds
a folder here, and none is ever written anew.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from toml_keys import TABLES

from servekit.domain.project import parse_project
from servekit.system.archives import archive
from servekit.system.proofs import proof_file
from servekit.verbs.inspect import inspect
from servekit.verbs.verify import verify

DATA = Path(__file__).resolve().parents[1] / "data"
ANSWER = [-0.8219, 0.0526]


@pytest.mark.parametrize("schema", ["schema-1", "schema-2"])
def test_an_archive_is_read_unpacked_and_proven(tmp_path: Path, schema: str) -> None:
    shutil.copytree(DATA / schema, tmp_path / "model_store")
    (tmp_path / "model_store" / "net.proof.json").unlink(missing_ok=True)
    info = archive.open_archive(tmp_path / "model_store" / "net.mar")
    assert (info.name, info.version, info.form) == ("net", "1.0", "mar")
    assert info.config["handler"]["schema"] == int(schema[-1])
    assert (archive.unpack(info, tmp_path / "cache") / "net.py").is_file()
    found = verify("net", tmp_path, lambda _: None, gpu="none", sign=None)
    assert found.record.parameters == 8
    assert found.record.examples[0].answer == pytest.approx(ANSWER, abs=1e-3)
    assert [row.precision for row in found.record.precisions] == ["fp32", "bf16"]


def test_the_first_proof_is_read(tmp_path: Path) -> None:
    shutil.copytree(DATA / "schema-2", tmp_path / "model_store")
    found = inspect("net", tmp_path)
    assert found.proof is not None and found.notes == ()
    (record,) = found.proof.records
    assert (record.chosen, record.device.kind, record.parameters) == ("fp32", "cpu", 8)
    assert record.examples[0].answer == pytest.approx(ANSWER, abs=1e-3)
    assert found.ours["meta"] == {"data": "v3"}
    path = tmp_path / "again.proof.json"
    proof_file.write(path, found.proof)
    assert json.loads(path.read_text()) == json.loads((DATA / "schema-2" / "net.proof.json").read_text())


def test_a_servekit_toml_with_every_key(tmp_path: Path) -> None:
    project = parse_project((DATA / "schema-2" / "servekit.toml").read_text())
    assert [model.name for model in project.models] == ["pictures", "numbers", "words"]
    text = (DATA / "schema-2" / "servekit.toml").read_text()
    for table, keys in TABLES.items():
        if table not in ("server", "runtime"):
            assert all(key in text for key in keys), table
