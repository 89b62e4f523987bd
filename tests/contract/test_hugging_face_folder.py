"""Hugging Face folders as `package` reads them, and adapters merged into them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import hugging_face
import pytest
import torch

from servekit.domain.model import ModelSpec
from servekit.errors import ModelError
from servekit.system.archives import archive
from servekit.system.model_files import huggingface
from servekit.verbs.package import How, package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hugging_face.save(tmp_path / "hf")
    return tmp_path / "hf"


def test_what_goes_into_the_archive(folder: Path) -> None:
    hugging_face.pooling(folder)
    (folder / "README.md").write_text("hello")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    found = huggingface.read(folder)
    assert (found.task, found.architecture, found.max_length, found.normalize) == ("embed", "BertModel", 20, True)
    assert set(found.files) >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert not {"README.md", "pytorch_model.bin", "modules.json"} & set(found.files)
    assert "README.md" in found.notes[-1] and "pytorch_model.bin" in found.notes[-1]


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json does not exist"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json is not a JSON object"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), "config.json is not JSON"),
        (lambda f: edit(f / "config.json", auto_map={"AutoModel": "x.Y"}), "names code of its own (auto_map)"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "only pickled weights (pytorch_model.bin)",
        ),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x00" * 20), "model.safetensors"),
        (lambda f: [p.unlink() for p in (*f.glob("tokenizer.json"), *f.glob("vocab*"))], "has no tokenizer"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "maps no weights to files"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "s1.safetensors"}}'),
            "s1.safetensors is missing",
        ),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
            "which is outside the folder",
        ),
        (lambda f: hugging_face.pooling(f, mode="cls_token"), "it pools by cls_token"),
        (lambda f: (f / "modules.json").write_text('[{"type": "x.Dense", "path": "2"}]'), "the module Dense has no"),
        (lambda f: (f / "modules.json").write_text("3"), "modules.json cannot be read"),
    ],
)
def test_what_is_refused(folder: Path, damage: Any, told: str) -> None:
    damage(folder)
    with pytest.raises(ModelError) as caught:
        huggingface.read(folder)
    assert told in caught.value.message


def test_all_problems_at_once(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    edit(folder / "config.json", auto_map={"a": "b"})
    with pytest.raises(ModelError, match="2 problems"):
        huggingface.read(folder)


@pytest.mark.parametrize(("kind", "task"), [("embed", "embed"), ("sequence", "sequence"), ("token", "token")])
def test_the_task_is_that_of_the_architecture(tmp_path: Path, kind: str, task: str) -> None:
    hugging_face.save(tmp_path / "hf", kind)
    assert huggingface.read(tmp_path / "hf").task == task


def test_packaged_and_proven(folder: Path, tmp_path: Path) -> None:
    hugging_face.pooling(folder)
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    (tmp_path / "b.txt").write_text("paris")
    spec = ModelSpec("m", weights="hf", handler="text", examples=("a.txt", "b.txt"), batch_size=4)
    packed = package(spec, tmp_path, tmp_path / "store", lambda _: None)
    config = archive.open_archive(packed.path).config["handler"]
    assert config["text"] == {"task": "embed", "max_length": None, "normalize": True, "top_k": 5, "pooling": "mean"}
    assert packed.record is not None
    assert packed.record.batches.malformed == "fails alone"
    first = packed.record.examples[0].answer["embedding"]
    assert sum(value * value for value in first) == pytest.approx(1.0, abs=1e-5)
    rows = {row.precision: row for row in packed.record.precisions}
    assert rows["bf16"].compared == "by the handler's compare(a, b)"
    again = package(spec, tmp_path, tmp_path / "store", lambda _: None, How(verify=False))
    assert packed.replaced is False and again.replaced is True


def adapter(folder: Path, base: Path, **changes: Any) -> None:
    """A LoRA adapter with weights that change every answer."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertModel

    torch.manual_seed(1)
    model = get_peft_model(
        BertModel.from_pretrained(base), LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"])
    )
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder, **changes)


def test_an_adapter_is_merged_and_its_equality_shown(folder: Path, tmp_path: Path) -> None:
    adapter(tmp_path / "lora", folder)
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    spec = ModelSpec("m", weights="hf", handler="text", examples=("a.txt",))
    plain = package(spec, tmp_path, tmp_path / "store", lambda _: None)
    said: list[str] = []
    tuned = package(dataclasses.replace(spec, name="t", adapter="lora"), tmp_path, tmp_path / "store", said.append)
    told = next(line for line in said if "merged" in line)
    assert told.startswith("t: adapter lora merged into 4 layers; answers before and after differ by at most ")
    assert float(told.rpartition(" ")[2].rstrip(".")) < 1e-4
    assert plain.record and tuned.record
    a, b = (record.examples[0].answer["embedding"] for record in (plain.record, tuned.record))
    assert a != pytest.approx(b, abs=1e-2), "the adapter counts"
    again = package(dataclasses.replace(spec, name="t", adapter="lora"), tmp_path, tmp_path / "other", said.append)
    assert again.path.read_bytes() == tuned.path.read_bytes()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "is no PEFT adapter"),
        (lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"), "pickled adapters are not read"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x" * 50), "cannot be merged"),
    ],
)
def test_adapters_that_are_none(folder: Path, tmp_path: Path, damage: Any, told: str) -> None:
    adapter(tmp_path / "lora", folder)
    damage(tmp_path / "lora")
    spec = ModelSpec("m", weights="hf", handler="text", adapter="lora")
    with pytest.raises(ModelError) as caught:
        package(spec, tmp_path, tmp_path / "store", lambda _: None)
    assert told in caught.value.message
    assert not (tmp_path / "store").exists()


def test_an_adapter_alone_names_its_base(folder: Path, tmp_path: Path) -> None:
    adapter(tmp_path / "lora", folder)
    with pytest.raises(ModelError, match="is a PEFT adapter without its base"):
        package(ModelSpec("m", weights="lora", handler="text"), tmp_path, tmp_path / "store", lambda _: None)
