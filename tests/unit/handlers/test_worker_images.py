from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from servekit_worker import images
from servekit_worker.errors import ItemError


def encoded(image: Image.Image, form: str = "PNG", **how: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **how)
    return buffer.getvalue()


def refused(body: object) -> ItemError:
    with pytest.raises(ItemError) as caught:
        images.decode(body, 3)
    return caught.value


def test_grey_pixels_of_the_right_size_pass_exactly() -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    image = images.decode(encoded(Image.fromarray(pixels)), 1)
    tensor = images.to_tensor(images.fit(image, 8, 8), (0.0,), (1.0,))
    assert tensor.shape == (1, 8, 8)
    assert torch.equal(tensor[0], torch.from_numpy(pixels).float() / 255)


def test_normalisation_is_per_channel() -> None:
    tensor = images.to_tensor(Image.new("RGB", (2, 1), (255, 0, 51)), (0.5, 0.25, 0.0), (0.5, 0.5, 2.0))
    assert tensor.shape == (3, 1, 2)
    assert tensor[:, 0, 0].tolist() == pytest.approx([1.0, -0.5, 0.1])


@pytest.mark.parametrize(("size", "scaled"), [((100, 50), (32, 16)), ((30, 91), (16, 48)), ((4, 4), (16, 16))])
def test_the_short_side_is_scaled_and_the_middle_cut(size: tuple[int, int], scaled: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    whole = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((scaled[0] - 12) / 2), round((scaled[1] - 12) / 2)
    expected = np.asarray(whole)[top : top + 12, left : left + 12]
    assert np.array_equal(np.asarray(images.fit(image, 16, 12)), expected)


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (16, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to see it upright
    assert images.decode(encoded(image, "JPEG", exif=exif), 3).size == (8, 16)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize(("channels", "expected"), [(1, "L"), (3, "RGB")])
def test_modes(mode: str, channels: int, expected: str) -> None:
    assert images.decode(encoded(Image.new(mode, (4, 4))), channels).mode == expected


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    deep = Image.fromarray(np.array([[0, 0x8080, 0xFFFF]], dtype=np.uint16))
    assert np.asarray(images.decode(encoded(deep), 1)).tolist() == [[0, 128, 255]]


def test_cmyk_jpeg() -> None:
    assert images.decode(encoded(Image.new("CMYK", (4, 4)), "JPEG"), 3).mode == "RGB"


@pytest.mark.parametrize("body", [b"hello", b"\x00" * 100, encoded(Image.new("L", (4, 4)), "GIF")])
def test_what_is_no_jpeg_or_png_is_a_415(body: bytes) -> None:
    assert refused(body).status == 415


@pytest.mark.parametrize("body", ["text", {"a": 1}, [1, 2]])
def test_what_torchserve_decoded_is_a_415(body: object) -> None:
    assert "application/octet-stream" in refused(body).message


def test_a_truncated_image_is_a_400() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for form in ("PNG", "JPEG"):
        whole = encoded(noise, form)
        error = refused(whole[: len(whole) // 2])
        assert (error.status, error.message[:21]) == (400, "the image is damaged:")


@pytest.mark.parametrize("limit", [10, 20])
def test_too_many_pixels_is_a_413(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Pillow raises above twice its limit and only warns above the limit: both are refused."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    assert refused(encoded(Image.new("L", (5, 5)))).status == 413


def test_a_lifted_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert images.decode(encoded(Image.new("L", (5, 5))), 1).size == (5, 5)


def test_a_thread_of_an_image_is_a_413() -> None:
    with pytest.raises(ItemError, match="too narrow") as caught:
        images.fit(Image.new("L", (1, 60000)), 256, 224)
    assert caught.value.status == 413
