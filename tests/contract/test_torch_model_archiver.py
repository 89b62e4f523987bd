"""Our archives and those of torch-model-archiver: each side reads the other's fields."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_archiver.manifest_components.manifest import Manifest
from model_archiver.manifest_components.model import Model

from servekit.render.manifest import ARCHIVER_VERSION, manifest
from servekit.system.archives import archive

ARCHIVER = "from model_archiver.model_packaging import generate_model_archive as g; g()"


def test_our_manifest_has_the_fields_of_the_real_one() -> None:
    real = Manifest(
        "python",
        Model("m", "/x/w.pt", "/x/h.py", model_file="net.py", model_version="2.0", config_file="/x/model-config.yaml"),
    ).manifest_dict
    ours = json.loads(
        manifest(
            name="m",
            version="2.0",
            handler="h.py",
            serialized_file="w.pt",
            model_file="net.py",
            config_file="model-config.yaml",
        )
    )
    assert list(ours) == list(real)
    assert ours["model"] == real["model"]
    assert ours["archiverVersion"] == real["archiverVersion"] == ARCHIVER_VERSION
    assert len(ours["createdOn"]) == len(real["createdOn"])


@pytest.mark.parametrize("config", [True, False])
def test_a_real_archive_is_opened_and_unpacked(tmp_path: Path, config: bool) -> None:
    (tmp_path / "w.pt").write_bytes(b"weights" * 1000)
    (tmp_path / "h.py").write_text("class H: pass\n")
    (tmp_path / "c.yaml").write_text("batchSize: 4\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "é.txt").write_text("x")
    options = ["--model-name", "m", "--version", "2.0", "--serialized-file", "w.pt", "--handler", "h.py"]
    options += ["--extra-files", "sub", "--export-path", str(tmp_path)]
    options += ["--config-file", "c.yaml"] if config else []
    subprocess.run((sys.executable, "-c", ARCHIVER, *options), cwd=tmp_path, check=True, timeout=120)
    info = archive.open_archive(tmp_path / "m.mar")
    assert (info.name, info.version, info.hashes) == ("m", "2.0", None)
    assert info.config == ({"batchSize": 4} if config else {})
    folder = archive.unpack(info, tmp_path / "cache")
    assert (folder / "w.pt").read_bytes() == b"weights" * 1000
    assert {member for member in info.members if not member.startswith("MAR-INF/")} == {
        *("w.pt", "h.py", "é.txt"),
        *(("c.yaml",) if config else ()),
    }


FORMATS = [
    ("default", "m.mar", "mar"),
    ("zip-store", "m.mar", "mar"),
    ("tgz", "m.tar.gz", "tgz"),
    ("no-archive", "m", "no-archive"),
]


@pytest.mark.parametrize(("archive_format", "file", "form"), FORMATS)
def test_every_format_of_the_real_archiver_is_read_alike(
    tmp_path: Path, archive_format: str, file: str, form: str
) -> None:
    """The archiver collects files in the temporary folder, under the model's name: it is given one of its own."""
    sources, out = tmp_path / "sources", tmp_path / "out"
    for folder in (sources / "extra" / "deep" / "deeper", out, tmp_path / "temporary"):
        folder.mkdir(parents=True)
    wanted = {
        "w.pt": bytes(range(256)) * 5000,
        "h.py": b"class H: pass\n",
        "net.py": b"class Net: pass\n",
        "c.yaml": b"batchSize: 4\nhandler: {profile: &p {a: 1}, again: *p}\n",
        "requirements.txt": b"a-package-that-does-not-exist\n",
    }
    extra = {"LICENSE": b"free", "deep/\u00e9.txt": b"x", f"deep/deeper/{'n' * 120}.bin": b"long", "empty": b""}
    for name, data in wanted.items():
        (sources / name).write_bytes(data)
    for name, data in extra.items():
        (sources / "extra" / name).write_bytes(data)
    options = ["--model-name", "m", "--version", "2.0", "--serialized-file", "w.pt", "--handler", "h.py"]
    options += ["--model-file", "net.py", "--config-file", "c.yaml", "--requirements-file", "requirements.txt"]
    options += ["--extra-files", "extra", "--export-path", str(out), "--archive-format", archive_format]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    subprocess.run((sys.executable, "-c", ARCHIVER, *options), cwd=sources, env=environment, check=True, timeout=120)
    info = archive.open_archive(out / file)
    assert (info.form, info.name, info.version, info.hashes) == (form, "m", "2.0", None)
    assert info.config == {"batchSize": 4, "handler": {"profile": {"a": 1}, "again": {"a": 1}}}
    assert info.manifest["model"]["requirementsFile"] == "requirements.txt"
    wanted |= extra
    sizes = {name: size for name, size in info.member_sizes.items() if name != archive.MANIFEST}
    assert sizes == {name: len(data) for name, data in wanted.items()}
    assert info.size == sum(sizes.values()) + info.member_sizes[archive.MANIFEST]
    assert archive.read_member(info, "LICENSE", 100) == b"free"
    unpacked = archive.unpack(info, tmp_path / "cache")
    assert {name: (unpacked / name).read_bytes() for name in wanted} == wanted
    assert archive.unpack(archive.open_archive(out / file), tmp_path / "cache") == unpacked
