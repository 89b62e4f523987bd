"""The order of packaging, with the probe's verdict given. Real verdicts: tests/contract/test_package.py."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from servekit.domain.model import ImageOptions, ModelSpec, TensorOptions
from servekit.errors import ConfigError, ModelError, ServekitError, StorageError
from servekit.system import archive, probe
from servekit.system.zipstream import ZipStream
from servekit.verbs import package as verb

SPEC = ModelSpec("m", weights="w.pt", model="net.py:Net", model_args={"n": 2}, handler="tensor", labels="l.txt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as out:
        out.writestr("w/data.pkl", "")
    (tmp_path / "net.py").write_text("class Net: pass\n")
    (tmp_path / "l.txt").write_text("a\nb\n")
    (tmp_path / "e.json").write_text("[1]")
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The probe says yes; the list holds what it was asked, and the files it saw."""
    requests: list[dict[str, Any]] = []

    def run(name: str, *, cwd: Path, request: dict[str, Any]) -> dict[str, Any]:
        seen = sorted(path.relative_to(cwd).as_posix() for path in cwd.rglob("*") if path.is_file())
        requests.append({"probe": name, "seen": seen, **request})
        return {"problem": None, "detail": "", "hint": "", "parameters": 12}

    monkeypatch.setattr(probe, "run", run)
    return requests


def package(spec: ModelSpec, folder: Path) -> verb.Packed:
    return verb.package(spec, folder, folder / "store", lambda _: None)


def test_the_archive(folder: Path, asked: list[dict[str, Any]]) -> None:
    packed = package(dataclasses.replace(SPEC, example="e.json"), folder)
    target = folder / "store" / "m.mar"
    assert packed == verb.Packed("m", "1.0", target, target.stat().st_size, 12, replaced=False)
    info = archive.open_archive(target)
    own = {"MAR-INF/MANIFEST.json", "MAR-INF/servekit.json", "model-config.yaml", "tensor_handler.py"}
    theirs = {"net.py", "w.pt", "index_to_name.json", "example/e.json"}
    assert own | theirs <= set(info.members)
    rest = set(info.members) - own - theirs
    assert rest and all(member.startswith("servekit_worker/") for member in rest)
    with zipfile.ZipFile(target) as opened:
        assert opened.namelist()[0] == "MAR-INF/MANIFEST.json"
        assert opened.read("w.pt") == (folder / "w.pt").read_bytes()
        assert json.loads(opened.read("index_to_name.json")) == {"0": "a", "1": "b"}
        listed = json.loads(opened.read("MAR-INF/servekit.json"))["members"]
        assert set(listed) == set(info.members) - {"MAR-INF/servekit.json"}
        for member, entry in listed.items():
            data = opened.read(member)
            assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (request,) = asked
    assert request["seen"] == sorted(set(info.members) - {"MAR-INF/servekit.json"}), "all but the hashes is proven"
    assert {key: request[key] for key in ("probe", "handler", "weights", "format", "file", "class", "args")} == {
        "probe": "model",
        "handler": "tensor_handler.py",
        "weights": "w.pt",
        "format": "state_dict",
        "file": "net.py",
        "class": "Net",
        "args": {"n": 2},
    }
    assert package(SPEC, folder).replaced


def test_it_can_be_unpacked(folder: Path, asked: list[dict[str, Any]]) -> None:
    info = archive.open_archive(package(SPEC, folder).path)
    assert (archive.unpack(info, folder / "cache") / "net.py").read_text() == "class Net: pass\n"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "token"}, "cannot be a model name"),
        ({"version": "a b"}, "cannot be a version"),
        ({"precision": "fp8"}, "precision 'fp8' is unknown"),
        ({"handler": "vision"}, "handler 'vision' is neither image nor tensor nor a .py file."),
        ({"model": "net:Net"}, "model 'net:Net' must be FILE.py:Class."),
        ({"model": "net.py"}, "must be FILE.py:Class."),
        ({"weights": None}, "m has no weights"),
        ({"handler": "image", "image": ImageOptions(resize=2, crop=3)}, "image.crop = 3 is larger"),
        ({"handler": "image", "image": ImageOptions(std=(0.0, 1.0, 1.0))}, "image.std must hold numbers above 0"),
        ({"tensor": TensorOptions(dtype="float31")}, "dtype 'float31' is unknown"),
        ({"tensor": TensorOptions((3, 0))}, "input_shape [3, 0] must hold whole numbers above 0."),
        ({"model": None}, "needs the class that its tensors belong to"),
        ({"weights": "none.pt"}, "none.pt does not exist"),
        ({"labels": "none.txt"}, "No such file"),
        ({"example": "none.png"}, "none.png does not exist"),
        ({"extra_files": ("net.py",)}, "net.py is in the archive already"),
        ({"extra_files": ("none/",)}, "does not exist"),
    ],
)
def test_refused_before_anything_runs(
    folder: Path, asked: list[dict[str, Any]], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises((ConfigError, ModelError)) as caught:
        package(dataclasses.replace(SPEC, **changes), folder)
    assert told in caught.value.message
    assert asked == []
    assert not (folder / "store").exists()


def test_torchscript_carries_its_own_class(folder: Path, asked: list[dict[str, Any]]) -> None:
    with zipfile.ZipFile(folder / "w.pt", "w") as out:
        for name in ("w/data.pkl", "w/constants.pkl", "w/code/x.py"):
            out.writestr(name, "")
    with pytest.raises(ModelError, match="leave out --model"):
        package(SPEC, folder)
    package(dataclasses.replace(SPEC, model=None, model_args={}), folder)
    assert (asked[0]["format"], asked[0]["file"]) == ("torchscript", None)


def test_the_probes_no_is_passed_on_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = {"problem": "it does not fit.", "hint": "mend it", "detail": "Traceback", "parameters": None}
    monkeypatch.setattr(probe, "run", lambda *_, **__: verdict)
    with pytest.raises(ModelError, match=r"m: it does not fit\.") as caught:
        package(SPEC, folder)
    assert (caught.value.hint, caught.value.detail) == ("mend it", "Traceback")
    assert not (folder / "store").exists()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, r"the disk is full \(\d+ MiB needed, \d+ MiB free\)"),
        (errno.EACCES, "Permission denied"),
        (errno.EIO, "error"),
    ],
)
def test_a_store_that_cannot_be_written_keeps_the_archive_before(
    folder: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    before = package(SPEC, folder).path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ZipStream, "finish", fail)
    with pytest.raises(StorageError, match=told):
        package(SPEC, folder)
    assert [path.name for path in (folder / "store").iterdir()] == ["m.mar"]
    assert (folder / "store" / "m.mar").read_bytes() == before


def test_a_store_that_is_a_file(folder: Path, asked: list[dict[str, Any]]) -> None:
    (folder / "store").touch()
    with pytest.raises(ServekitError) as caught:
        package(SPEC, folder)
    assert isinstance(caught.value, StorageError)


def test_the_same_bytes_from_another_folder_at_another_time(
    folder: Path, asked: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for path in [path for path in folder.iterdir() if path.is_file()]:
        (other / path.name).write_bytes(path.read_bytes())
        os.utime(other / path.name, (1, 1))
    assert package(SPEC, folder).path.read_bytes() == package(SPEC, other).path.read_bytes()
