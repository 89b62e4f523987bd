"""What an archive says of itself: MANIFEST.json and model-config.yaml."""

from __future__ import annotations

import json

import pytest
import yaml
from golden_files import Golden

import servekit_worker.options
from servekit.domain.model import ImageOptions, ModelSpec, TensorOptions, TextOptions
from servekit.render.manifest import manifest
from servekit.render.model_config import Placed, model_config, to_yaml

IMAGE = ModelSpec(
    "digits",
    model="src/nets.py:Net",
    model_args={"width": 16, "kind": "größer"},
    handler="image",
    precision="bf16",
    batch_size=4,
    max_batch_delay_ms=9,
    workers=2,
    image=ImageOptions(8, 8, 1, (0.3,), (0.35,), 3),
)
TENSOR = ModelSpec("sums", handler="tensor", tensor=TensorOptions((1, 2), "int64"))
CUSTOM = ModelSpec("rules", handler="mine.py", keep_fp32=("head*",), tolerance={"top1": 0.9, "bf16": 0.03})
TEXT = ModelSpec("minilm", handler="text", text=TextOptions("embed", 256, True))
CASES = {
    "image": (IMAGE, Placed("d.pt", "state_dict", "nets.py", "index_to_name.json", ("example/a.png", "example/b.png"))),
    "tensor": (TENSOR, Placed("s.pt", "torchscript")),
    "custom": (CUSTOM, Placed()),
    "text": (TEXT, Placed("model", "huggingface")),
}


@pytest.mark.parametrize("case", CASES)
def test_golden_model_config(case: str, golden: Golden) -> None:
    golden(f"model-config-{case}.txt", to_yaml(model_config(*CASES[case])))


def test_golden_manifest(golden: Golden) -> None:
    names = {"name": "digits", "version": "2.0", "handler": "image_handler.py", "config_file": "model-config.yaml"}
    golden("manifest.txt", manifest(**names, serialized_file="d.pt", model_file="nets.py"))


def test_a_manifest_leaves_out_what_is_not_there() -> None:
    text = manifest(
        name="é", version="1", handler="h.py", serialized_file=None, model_file=None, config_file="model-config.yaml"
    )
    model = json.loads(text)["model"]
    assert model == {"modelName": "é", "handler": "h.py", "modelVersion": "1", "configFile": "model-config.yaml"}


def test_the_archives_runtime_reads_what_was_written() -> None:
    image = servekit_worker.options.parse(yaml.safe_load(to_yaml(model_config(*CASES["image"]))))
    assert (image.kind, image.precision, image.threads) == ("image", "bf16", None)
    assert image.model == servekit_worker.options.ModelOptions(
        "state_dict", "d.pt", "nets.py", "Net", {"width": 16, "kind": "größer"}
    )
    assert (image.labels, image.examples) == ("index_to_name.json", ("example/a.png", "example/b.png"))
    assert image.image == servekit_worker.options.ImageOptions(8, 8, 1, (0.3,), (0.35,), 3)
    tensor = servekit_worker.options.parse(yaml.safe_load(to_yaml(model_config(*CASES["tensor"]))))
    assert tensor.model == servekit_worker.options.ModelOptions("torchscript", "s.pt")
    assert tensor.tensor == servekit_worker.options.TensorOptions((1, 2), "int64")
    custom = servekit_worker.options.parse(yaml.safe_load(to_yaml(model_config(*CASES["custom"]))))
    assert (custom.kind, custom.model, custom.image, custom.tensor) == ("custom", None, None, None)
    assert custom.keep_fp32 == ("head*",)
    text = servekit_worker.options.parse(yaml.safe_load(to_yaml(model_config(*CASES["text"]))))
    assert text.text == servekit_worker.options.TextOptions("embed", 256, True, 5)


def test_any_shape_is_null() -> None:
    spec = ModelSpec("a", handler="tensor")
    assert model_config(spec, Placed("w", "torchscript"))["handler"]["tensor"]["input_shape"] is None
