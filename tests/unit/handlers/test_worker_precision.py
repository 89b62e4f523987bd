from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from servekit_worker.errors import SetupError
from servekit_worker.precision import resolve

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Put torch's process-wide switches back."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    wide = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(wide)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def capability(monkeypatch: pytest.MonkeyPatch, value: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: value)


@pytest.mark.parametrize(
    ("value", "name"),
    [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((7, 0), "fp16"), ((6, 1), "fp32")],
)
def test_auto_goes_by_capability(monkeypatch: pytest.MonkeyPatch, value: tuple[int, int], name: str) -> None:
    capability(monkeypatch, value)
    chosen = resolve("auto", GPU)
    assert chosen.name == name
    assert f"compute capability {value[0]}.{value[1]}" in chosen.reason


@pytest.mark.parametrize(
    ("wanted", "enough", "short"),
    [("bf16", (8, 0), (7, 5)), ("tf32", (8, 0), (7, 5)), ("fp16", (5, 3), (5, 2))],
)
def test_what_the_gpu_cannot_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, wanted: str, enough: tuple[int, int], short: tuple[int, int]
) -> None:
    capability(monkeypatch, enough)
    assert resolve(wanted, GPU).name == wanted
    capability(monkeypatch, short)
    with pytest.raises(SetupError, match=f"precision {wanted} needs compute capability"):
        resolve(wanted, GPU)


def test_the_cpu() -> None:
    assert resolve("auto", CPU).name == "fp32"
    assert resolve("bf16", CPU).name == "bf16"
    for wanted in ("fp16", "tf32"):
        with pytest.raises(SetupError, match=f"precision {wanted} needs an NVIDIA GPU"):
            resolve(wanted, CPU)


def test_the_reason_of_a_fixed_precision_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    capability(monkeypatch, (9, 0))
    assert resolve("fp16", GPU, "proved").reason == "proved"
    assert resolve("bf16", CPU, "proved").reason == "proved"
    assert resolve("bf16", CPU).reason == "as configured"
    assert resolve("auto", CPU, "proved").reason == "auto: the CPU"


@pytest.mark.parametrize(("wanted", "allowed"), [("fp32", False), ("tf32", True), ("bf16", False)])
def test_tf32_is_on_for_tf32_only(monkeypatch: pytest.MonkeyPatch, wanted: str, allowed: bool) -> None:
    capability(monkeypatch, (9, 0))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not allowed
    resolve(wanted, GPU).configure()
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")


def test_autocast_reaches_the_forward_pass() -> None:
    layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with resolve("bf16", CPU).autocast():
        assert layer(x).dtype == torch.bfloat16
    with resolve("fp32", CPU).autocast():
        assert layer(x).dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("wanted", ["fp32", "tf32"])
def test_fp32_is_strict_and_tf32_is_not(wanted: str) -> None:
    """TF32 keeps 10 bits of mantissa: its error is hundreds of times that of fp32."""
    torch.manual_seed(0)
    chosen = resolve(wanted, GPU)
    chosen.configure()
    x, kernel = torch.randn(4, 256, 32, 32, device=GPU), torch.randn(256, 256, 3, 3, device=GPU)
    a = torch.randn(1024, 1024, device=GPU)
    for low, high in (
        (a @ a, a.double() @ a.double()),
        (
            torch.nn.functional.conv2d(x, kernel),
            torch.nn.functional.conv2d(x.double(), kernel.double()),
        ),
    ):
        error = ((low.double() - high).abs().max() / high.abs().max()).item()
        assert (error < 2e-5) if wanted == "fp32" else (error > 2e-5), error
