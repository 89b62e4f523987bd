"""A handler from initialize to answers, in this process and with a context like TorchServe's."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from image_handler import ImageHandler
from servekit_worker.errors import SetupError
from servekit_worker.items import Item
from servekit_worker.serving import ModelHandler
from tensor_handler import TensorHandler

IMAGE = {"resize": 4, "crop": 2, "channels": 3, "mean": [0.0] * 3, "std": [1.0] * 3, "top_k": 9}


class Context:
    """What a handler uses of ts.context.Context; remembers statuses and content types by index."""

    def __init__(self, folder: Path, section: dict[str, Any], **properties: Any) -> None:
        self.model_name = "m"
        self.model_yaml_config = {"handler": {"schema": 1, **section}}
        self.system_properties = {"model_dir": str(folder), "gpu_id": None, "batch_size": 3, **properties}
        self.statuses: dict[int, tuple[int, str]] = {}
        self.types: dict[int, str] = {}

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        return {}

    def set_response_status(self, code: int, phrase: str, idx: int) -> None:
        self.statuses[idx] = (code, phrase)

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.types[idx] = value


class Means(torch.nn.Module):
    """[n, channels, h, w] -> [n, channels], the mean of each channel; remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.given.append(list(x.shape))
        return x.mean(dim=(2, 3))


class Painter(ImageHandler):
    def load_model(self) -> torch.nn.Module:
        return Means()


class Echo(TensorHandler):
    def load_model(self) -> torch.nn.Module:
        return torch.nn.Identity()


@pytest.fixture(autouse=True)
def process_wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what a worker sets for its whole process."""
    monkeypatch.delenv("SERVEKIT_WORKER_REPORTS", raising=False)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    wide, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(wide)
    torch.backends.cudnn.allow_tf32 = cudnn


def png(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_without_an_example_are_warmed_up_with_a_black_one(tmp_path: Path) -> None:
    handler, context = Painter(), Context(tmp_path, {"kind": "image", "image": IMAGE})
    handler.initialize(context)
    assert not handler.model.training
    assert handler.model.given == [[1, 3, 2, 2], [3, 3, 2, 2]]
    (answer,) = handler.handle([{"data": bytearray(png((0, 255, 0)))}], context)
    predictions = json.loads(answer)["predictions"]
    assert (predictions[0]["index"], predictions[0]["label"]) == (1, "1")
    assert len(predictions) == 3, "top_k 9, but three classes"
    assert sum(p["score"] for p in predictions) == pytest.approx(1.0)
    assert (context.types, context.statuses) == ({0: "application/json"}, {})


def test_a_bad_item_has_its_own_status_and_phrase(tmp_path: Path) -> None:
    handler, context = Painter(), Context(tmp_path, {"kind": "image", "image": IMAGE})
    handler.initialize(context)
    answers = handler.handle([{"body": b""}, {"body": png((1, 2, 3))}, {"body": b"x"}], context)
    assert context.statuses == {
        0: (400, HTTPStatus.BAD_REQUEST.phrase),
        2: (415, HTTPStatus.UNSUPPORTED_MEDIA_TYPE.phrase),
    }
    assert [json.loads(answer).get("code") for answer in answers] == [400, None, 415]


@pytest.mark.parametrize(("limited", "status"), [(True, 413), (False, None)])
def test_the_servers_pixel_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: bool, status: int | None
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    context = Context(tmp_path, {"kind": "image", "image": IMAGE}, limit_max_image_pixels=limited)
    handler = Painter()
    handler.initialize(context)
    (answer,) = handler.handle([{"body": png((1, 2, 3))}], context)
    assert json.loads(answer).get("code") == status


def test_a_model_that_does_not_classify_cannot_be_an_image_model(tmp_path: Path) -> None:
    class Planes(ImageHandler):
        def load_model(self) -> torch.nn.Module:
            return torch.nn.Identity()

    with pytest.raises(TypeError, match=r"outputs \[batch, classes\], but got \[1, 3, 2, 2\]"):
        Planes().initialize(Context(tmp_path, {"kind": "image", "image": IMAGE}))


def test_bf16_answers_are_fp32_lists(tmp_path: Path) -> None:
    class Layer(TensorHandler):
        def load_model(self) -> torch.nn.Module:
            layer = torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.constant_(layer.weight, 1.0)
            return layer

    section = {"kind": "tensor", "precision": "bf16", "tensor": {"input_shape": [2]}}
    handler, context = Layer(), Context(tmp_path, section)
    handler.initialize(context)
    assert handler.handle([{"body": [1.0, 0.001]}], context) == ["[1.0]"], "0.001 is below bf16's last bit"


def test_a_handler_for_another_kind_says_so(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"image_handler\.py serves kind image, but handler\.kind is tensor"):
        Painter().initialize(Context(tmp_path, {"kind": "tensor"}))
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(SetupError, match=r"tensor_handler\.py serves kind tensor, but handler\.kind is custom"):
        Echo().initialize(Context(tmp_path, {"kind": "custom", "example": "a.json"}))


def test_no_weights_and_no_load_model(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"TensorHandler does not override load_model\(\)"):
        TensorHandler().initialize(Context(tmp_path, {"kind": "tensor"}))


def test_a_handler_must_say_how_to_read_an_item() -> None:
    class Half(ModelHandler):
        pass

    with pytest.raises(TypeError, match="preprocess"):
        Half()  # type: ignore[abstract]


def test_text_and_bytes_are_sent_as_they_are_and_a_short_list_is_refused(tmp_path: Path) -> None:
    class Words(ModelHandler):
        def load_model(self) -> torch.nn.Module:
            return torch.nn.Identity()

        def preprocess(self, item: Item) -> torch.Tensor:
            return torch.zeros(1)

        def postprocess(self, outputs: Any) -> list[Any]:
            return ["plain", bytearray(b"\x00")]

    handler, context = Words(), Context(tmp_path, {"kind": "custom"})
    handler.initialize(context)
    assert handler.handle([{"body": 1}, {"body": 2}], context) == ["plain", b"\x00"]
    assert context.types == {}
    with pytest.raises(ValueError, match="a list of 3 answers, not 2"):
        handler.handle([{"body": 1}] * 3, context)


def answer(*scores: tuple[int, float]) -> dict[str, Any]:
    return {"predictions": [{"index": index, "label": str(index), "score": score} for index, score in scores]}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (answer((3, 0.8), (1, 0.1)), (0.0, 0.0, True)),
        (answer((1, 0.1), (3, 0.8)), (0.0, 0.0, False)),
        (answer((3, 0.6), (1, 0.3)), (0.25, 0.2 / 0.45, True)),
        (answer((3, 0.8), (2, 0.08)), (0.025, 0.02 / 3 / 0.45, True)),
    ],
    ids=["same", "another first", "other scores", "another class: 1 is at most 0.08 there, 2 at most 0.1 here"],
)
def test_two_answers_are_compared_by_class(other: Any, expected: tuple[float, float, bool]) -> None:
    found = Painter().compare(answer((3, 0.8), (1, 0.1)), other)
    assert found == {
        "max_rel": pytest.approx(expected[0]),
        "mean_rel": pytest.approx(expected[1]),
        "top1": expected[2],
    }


def test_kept_modules_and_a_given_reason_reach_the_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Layers(TensorHandler):
        def load_model(self) -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    section = {"kind": "tensor", "precision": "bf16", "precision_reason": "proved", "keep_fp32": ["1"]}
    handler = Layers()
    with caplog.at_level("INFO"):
        handler.initialize(Context(tmp_path, section))
    assert (handler.precision.name, handler.precision.reason) == ("bf16", "proved")
    with torch.inference_mode(), handler.precision.autocast():
        assert handler.model[0](torch.ones(1, 2)).dtype == torch.bfloat16
        assert handler.model(torch.ones(1, 2)).dtype == torch.float32
    assert "1 modules compute in fp32: 1" in caplog.text


def test_a_handler_may_make_a_module_of_an_engines_file(tmp_path: Path) -> None:
    class Own(TensorHandler):
        def load_model(self) -> torch.nn.Module:
            return torch.nn.Linear(2, 2)

    handler = Own()
    model = {"format": "exported", "weights": "m.pt2"}
    handler.initialize(Context(tmp_path, {"kind": "tensor", "precision": "bf16", "model": model}))
    assert (handler.precision.name, handler.precision.reason) == ("bf16", "as configured")
