from __future__ import annotations

from typing import Any

import pytest

from servekit_worker.errors import SetupError
from servekit_worker.options import ImageOptions, ModelOptions, TensorOptions, parse

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
    assert (options.labels, options.example) == ("names.json", "e/a.png")
    assert options.model == ModelOptions("state_dict", "w.pt", "model.py", "Net", {"n": 2})
    assert options.image == ImageOptions(256, 224, 3, (0.5, 0.5, 0.0), (1.0, 0.2, 0.3), 5)
    assert options.tensor is None


def test_a_custom_handler_needs_no_model() -> None:
    options = parse({"handler": {"schema": 1, "kind": "custom"}})
    assert (options.model, options.image, options.tensor, options.labels) == (None, None, None, None)
    assert options.precision == "auto"


def test_torchscript_has_no_file_and_no_class() -> None:
    model = {"format": "torchscript", "weights": "s.pt"}
    assert parse(section(model=model)).model == ModelOptions("torchscript", "s.pt")
    assert "handler.model.class is an unknown key" in problems(section(model={**model, "class": "Net"}))


@pytest.mark.parametrize("shape", [None, [], [1, 8, 8]])
def test_tensor_shapes(shape: list[int] | None) -> None:
    options = parse(section(kind="tensor", image=..., tensor={"input_shape": shape, "dtype": "int64"}))
    assert options.tensor == TensorOptions(None if shape is None else tuple(shape), "int64")


@pytest.mark.parametrize("config", [None, {}, {"handler": None}])
def test_no_section(config: Any) -> None:
    assert "has no handler: section" in problems(config)


def test_another_schema_is_refused_before_anything_else() -> None:
    told = problems(section(schema=2, kind="video"))
    assert "handler.schema is 2" in told
    assert "video" not in told


def test_all_problems_at_once() -> None:
    told = problems(section(kind="imgae", precison="fp32", threads=True, model={"format": "onnx"}))
    assert "handler.kind is 'imgae'; it must be one of image, tensor, custom." in told
    assert "handler.precison is an unknown key; did you mean 'precision'?" in told
    assert "handler.threads is True; it must be a whole number" in told
    assert "handler.model.format is 'onnx'" in told
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
