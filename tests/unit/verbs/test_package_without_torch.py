"""The order of packaging, with the probe's verdict given. Real verdicts: tests/contract/test_package.py."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from torch_files import Spec, save_zip, state

from servekit.domain.model import ImageOptions, ModelSpec, TensorOptions
from servekit.errors import ConfigError, ModelError, ServekitError, StorageError
from servekit.system import nvml
from servekit.system.archives import archive
from servekit.system.archives.zipstream import ZipStream
from servekit.system.proofs import proof_file, prove
from servekit.system.trust import keys, signing
from servekit.verbs import package as verb

SPEC = ModelSpec("m", weights="w.pt", model="net.py:Net", model_args={"n": 2}, handler="tensor", labels="l.txt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    specs: dict[str, Spec] = {
        "fc.weight": ("FloatStorage", "0", 2, 0, (1, 2), (2, 1)),
        "fc.bias": ("FloatStorage", "1", 1, 0, (1,), (1,)),
    }
    save_zip(tmp_path / "w.pt", state(specs), {"0": struct.pack("<2f", 1.0, 2.0), "1": struct.pack("<f", 1.0)})
    (tmp_path / "net.py").write_text("class Net: pass\n")
    (tmp_path / "l.txt").write_text("a\nb\n")
    (tmp_path / "e.json").write_text("[1]")
    return tmp_path


def result(**changes: Any) -> dict[str, Any]:
    """What the proof's child answers when all is well."""
    return {
        "problem": None,
        "hint": "",
        "detail": "",
        "versions": {"torch": "9"},
        "device": {"kind": "cpu", "name": "a CPU", "capability": None, "memory_mib": None},
        "examples": [],
        "batches": {"sizes": [1, 2, 8], "max_rel": 0.0, "malformed": "fails alone"},
        "precisions": [{"precision": "fp32", "batch_ms": 1.0}, {"precision": "bf16", "max_rel": 0.5, "batch_ms": 0.5}],
        "load_s": 0.5,
        "host_mib": 100.0,
        "parameters": 12,
        "flops": None,
        "trained": "",
        "top1_counts": False,
        "warnings": [],
        **changes,
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The proof says yes; the list holds what it was asked, and the files it saw."""
    requests: list[dict[str, Any]] = []

    def run(stage: Path, request: dict[str, Any], gpu: Any, progress: Any) -> dict[str, Any]:
        seen = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        requests.append({"seen": seen, "gpu": gpu, **request})
        return result()

    monkeypatch.setattr(prove, "run", run)
    monkeypatch.setattr(nvml, "inventory", lambda: ())
    return requests


def package(spec: ModelSpec, folder: Path, how: verb.How | None = None) -> verb.Packed:
    return verb.package(spec, folder, folder / "store", lambda _: None, how)


def test_the_archive_and_its_papers(folder: Path, asked: list[dict[str, Any]]) -> None:
    packed = package(dataclasses.replace(SPEC, examples=("e.json",), meta={"data": "v3"}), folder)
    target = folder / "store" / "m.mar"
    assert (packed.path, packed.size, packed.parameters, packed.replaced) == (target, target.stat().st_size, 12, False)
    assert packed.sha256 == hashlib.sha256(target.read_bytes()).hexdigest()
    info = archive.open_archive(target)
    own = {"MAR-INF/MANIFEST.json", "MAR-INF/servekit.json", "model-config.yaml", "tensor_handler.py"}
    theirs = {"net.py", "w.safetensors", "index_to_name.json", "example/e.json"}
    assert own | theirs <= set(info.members)
    rest = set(info.members) - own - theirs
    assert rest and all(member.startswith("servekit_worker/") for member in rest)
    with zipfile.ZipFile(target) as opened:
        assert opened.namelist()[0] == "MAR-INF/MANIFEST.json"
        header, _, data = opened.read("w.safetensors")[8:].partition(b"}}")
        assert b"fc.bias" in header and data.strip() == struct.pack("<3f", 1.0, 1.0, 2.0)
        assert json.loads(opened.read("index_to_name.json")) == {"0": "a", "1": "b"}
        ours = json.loads(opened.read("MAR-INF/servekit.json"))
        assert (ours["schema"], ours["meta"]) == (1, {"data": "v3"})
        assert ours["weights"] == {"format": "safetensors", "tensors": 2, "dtypes": ["F32"]}
        assert set(ours["members"]) == set(info.members) - {"MAR-INF/servekit.json"}
        for member, entry in ours["members"].items():
            data = opened.read(member)
            assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (request,) = asked
    assert request["seen"] == sorted(set(info.members) - {"MAR-INF/servekit.json"}), "all but the hashes is proven"
    assert request["examples"] == [{"file": "example/e.json", "content_type": "application/json"}]
    assert (request["handler"], request["batch_size"], request["gpu"]) == ("tensor_handler.py", 8, None)
    assert request["precisions"] == ["fp32", "bf16"]
    written = proof_file.read(folder / "store" / "m.proof.json")
    assert written is not None and written.sha256 == packed.sha256
    assert written.records == (packed.record,)
    assert packed.record is not None and packed.record.chosen == "fp32"
    assert package(SPEC, folder).replaced


def test_without_a_proof_nothing_runs_and_the_old_one_goes(folder: Path, asked: list[dict[str, Any]]) -> None:
    package(SPEC, folder)
    said: list[str] = []
    packed = verb.package(SPEC, folder, folder / "store", said.append, verb.How(verify=False))
    assert (packed.record, packed.sha256, packed.proof, len(asked)) == (None, None, None, 1)
    assert "m: --no-verify: nothing proves that this archive loads and answers." in said
    assert sorted(path.name for path in (folder / "store").iterdir()) == ["m.mar"]


def test_signed(folder: Path, asked: list[dict[str, Any]]) -> None:
    keys.generate(folder / "key")
    packed = package(SPEC, folder, verb.How(sign=folder / "key"))
    assert packed.proof and packed.sha256 and packed.signature == folder / "store" / "m.sig.json"
    signing.check(packed.path, packed.sha256, packed.proof.read_bytes(), folder / "key.pub")
    package(SPEC, folder)
    assert not packed.signature.exists(), "the signature of another archive goes with it"


def test_a_precision_beyond_its_tolerance_is_refused(folder: Path, asked: list[dict[str, Any]]) -> None:
    with pytest.raises(ModelError, match=r"m: at bf16 the answers leave the tolerance: .* 0\.5, allowed 0\.02"):
        package(dataclasses.replace(SPEC, precision="bf16"), folder)
    assert not (folder / "store").exists()
    loose = dataclasses.replace(SPEC, precision="bf16", tolerance={"bf16": 0.6})
    record = package(loose, folder).record
    assert record is not None and record.chosen == "bf16"
    config = archive.open_archive(folder / "store" / "m.mar").config
    assert config["proof"] == {"tolerance": {"bf16": 0.6}}


def test_it_can_be_unpacked(folder: Path, asked: list[dict[str, Any]]) -> None:
    info = archive.open_archive(package(SPEC, folder).path)
    assert (archive.unpack(info, folder / "cache") / "net.py").read_text() == "class Net: pass\n"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "token"}, "cannot be a model name"),
        ({"version": "a b"}, "cannot be a version"),
        ({"precision": "fp8"}, "precision 'fp8' is unknown"),
        ({"handler": "vision"}, "handler 'vision' is neither image, tensor, text nor a .py file."),
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
        ({"examples": ("none.png",)}, "none.png does not exist"),
        ({"tolerance": {"fp8": 0.1}}, "tolerance 'fp8' is unknown"),
        ({"precision": "fp32", "keep_fp32": ("a",)}, "keep_fp32 has no effect with precision fp32"),
        ({"handler": "text"}, "--handler text needs a Hugging Face folder"),
        ({"adapter": "lora"}, "--adapter needs a Hugging Face folder"),
        ({"weights_key": "ema"}, "holds no state dict at --weights-key 'ema'"),
        ({"format": "safetensors"}, "w.pt is a state dict (it holds data.pkl and no code/), and cannot be taken as"),
        ({"card": "none.md"}, "none.md does not exist"),
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


def test_what_carries_its_own_class_needs_none(folder: Path, asked: list[dict[str, Any]]) -> None:
    save_zip(folder / "w.pt", b"\x80\x02N.", {}, {"constants.pkl": b"\x80\x02N.", "code/x.py": b""})
    with pytest.raises(ModelError, match="leave out --model"):
        package(SPEC, folder)
    package(dataclasses.replace(SPEC, model=None, model_args={}), folder)
    config = archive.open_archive(folder / "store" / "m.mar").config
    assert config["handler"]["model"] == {"format": "torchscript", "weights": "w.pt"}


def test_the_proofs_no_is_passed_on_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise ModelError("it does not fit.", hint="mend it", detail="Traceback")

    monkeypatch.setattr(nvml, "inventory", lambda: ())
    monkeypatch.setattr(prove, "run", no)
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
    before = package(SPEC, folder, verb.How(verify=False)).path.read_bytes()

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
