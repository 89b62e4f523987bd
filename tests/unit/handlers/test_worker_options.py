from __future__ import annotations

from typing import Any

import pytest

from servekit_worker.errors import SetupError
from servekit_worker.options import ImageOptions, ModelOptions, TensorOptions, TextOptions, parse

MODEL = {"format": "state_dict", "weights": "w.pt", "file": "model.py", "class": "Net", "args": {"n": 2}}
IMAGE = {"resize": 256, "crop": 224, "channels": 3, "mean": [0.5, 0.5, 0], "std": [1, 0.2, 0.3], "top_k": 5}


def section(**changes: Any) -> dict[str, Any]:
    base = {"schema": 1, "kind": "image", "precision": "auto", "model": MODEL, "image": IMAGE}
    return {"minWorkers": 1, "handler": {k: v for k, v in {**base, **changes}.items() if v is not ...}}


def problems(config: Any) -> str:
    with pytest.raises(SetupError) as caught:
        parse(config)
    return str(caught.value)


def test_the_whole_section() -> None:
    options = parse(section(labels="names.json", example="e/a.png", threads=2))
    assert (options.kind, options.precision, options.threads) == ("image", "auto", 2)
    assert (options.labels, options.examples) == ("names.json", ("e/a.png",))
    assert options.model == ModelOptions("state_dict", "w.pt", "model.py", "Net", {"n": 2})
    assert options.image == ImageOptions(256, 224, 3, (0.5, 0.5, 0.0), (1.0, 0.2, 0.3), 5)
    assert options.tensor is None


def test_a_custom_handler_needs_no_model() -> None:
    options = parse({"handler": {"schema": 1, "kind": "custom"}})
    assert (options.model, options.image, options.tensor, options.labels) == (None, None, None, None)
    assert options.precision == "auto"


def test_what_schema_2_adds() -> None:
    options = parse(
        section(schema=2, keep_fp32=["head*"], precision="bf16", precision_reason="measured", examples=["a"])
    )
    assert (options.keep_fp32, options.precision_reason, options.examples) == (("head*",), "measured", ("a",))
    text = {"task": "embed", "max_length": 128, "normalize": True, "top_k": 3, "pooling": "mean"}
    found = parse(section(schema=2, kind="text", image=..., text=text)).text
    assert found == TextOptions("embed", 128, True, 3)


@pytest.mark.parametrize("form", ["torchscript", "exported", "aoti", "onnx"])
def test_whole_programs_have_no_file_and_no_class(form: str) -> None:
    model = {"format": form, "weights": "s.pt"}
    assert parse(section(model=model)).model == ModelOptions(form, "s.pt")
    assert "handler.model.class is an unknown key" in problems(section(model={**model, "class": "Net"}))


def test_safetensors_needs_the_class_as_a_state_dict_does() -> None:
    model = {**MODEL, "format": "safetensors", "weights": "w.safetensors"}
    assert parse(section(model=model)).model == ModelOptions(
        "safetensors", "w.safetensors", "model.py", "Net", {"n": 2}
    )
    assert "handler.model.file is missing" in problems(section(model={"format": "safetensors", "weights": "w"}))


def test_examples_old_and_new() -> None:
    assert parse(section(examples=["a.png", "b.png"])).examples == ("a.png", "b.png")
    assert parse(section(examples=["a.png", "b.png"])).example == "a.png"
    assert parse(section(example="a.png")).examples == ("a.png",)
    assert (parse(section()).example, parse(section()).examples) == (None, ())
    assert "has both example and examples" in problems(section(example="a", examples=["b"]))
    assert "handler.examples is [1]; it must be a list of texts." in problems(section(examples=[1]))


def test_precision_reason_and_keep_fp32() -> None:
    options = parse(section(precision="bf16", precision_reason="proved", keep_fp32=["head", "*.norm"]))
    assert (options.precision_reason, options.keep_fp32) == ("proved", ("head", "*.norm"))
    assert (parse(section()).precision_reason, parse(section()).keep_fp32) == (None, ())
    assert "handler.precision_reason is for a fixed precision" in problems(section(precision_reason="proved"))
    assert "handler.keep_fp32 is 'head'; it must be a list" in problems(section(keep_fp32="head"))


@pytest.mark.parametrize("form", ["torchscript", "exported", "aoti", "onnx"])
def test_keep_fp32_needs_modules_that_can_be_changed(form: str) -> None:
    told = problems(section(keep_fp32=["head"], model={"format": form, "weights": "w"}))
    assert f"handler.keep_fp32 is not available for format {form}" in told


@pytest.mark.parametrize("shape", [None, [], [1, 8, 8]])
def test_tensor_shapes(shape: list[int] | None) -> None:
    options = parse(section(kind="tensor", image=..., tensor={"input_shape": shape, "dtype": "int64"}))
    assert options.tensor == TensorOptions(None if shape is None else tuple(shape), "int64")


@pytest.mark.parametrize("config", [None, {}, {"handler": None}])
def test_no_section(config: Any) -> None:
    assert "has no handler: section" in problems(config)


def test_another_schema_is_refused_before_anything_else() -> None:
    told = problems(section(schema=3, kind="video"))
    assert "handler.schema is 3" in told
    assert "video" not in told


def test_all_problems_at_once() -> None:
    told = problems(section(kind="imgae", precison="fp32", threads=True, model={"format": "tflite"}))
    assert "handler.kind is 'imgae'; it must be one of image, tensor, text, custom." in told
    assert "handler.precison is an unknown key; did you mean 'precision'?" in told
    assert "handler.threads is True; it must be a whole number" in told
    assert "handler.model.format is 'tflite'" in told
    assert "handler.model.weights is missing" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"crop": 257}, "handler.image.crop (257) must not be larger than resize (256)."),
        ({"channels": 4}, "handler.image.channels is 4; it must be 1 (grey) or 3 (RGB)."),
        ({"channels": 1}, "handler.image.mean has 3 numbers for 1 channels."),
        ({"std": [1, 0, 1]}, "handler.image.std must not hold 0"),
        ({"mean": ["a", 1, 1]}, "handler.image.mean is ['a', 1, 1]; it must be a list of numbers."),
        ({"top_k": 0}, "handler.image.top_k is 0; it must be a whole number of at least 1."),
        ({"size": 3}, "handler.image.size is an unknown key"),
    ],
)
def test_image_options(change: dict[str, Any], told: str) -> None:
    assert told in problems(section(image={**IMAGE, **change}))


def test_a_section_of_another_kind_is_unknown() -> None:
    assert "handler.tensor is an unknown key" in problems(section(tensor={"input_shape": [1]}))
    assert "handler.image is missing" in problems(section(image=...))
    assert "handler.tensor must be a mapping, not list" in problems(section(kind="tensor", image=..., tensor=[1]))
