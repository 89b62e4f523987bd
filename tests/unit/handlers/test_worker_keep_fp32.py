from __future__ import annotations

from typing import Any

import pytest
import torch

from servekit_worker import keep_fp32
from servekit_worker.errors import SetupError
from servekit_worker.precision import Precision, resolve

CPU = torch.device("cpu")
BF16 = Precision("bf16", "as configured", "cpu")


class Layer(torch.nn.Module):
    """Remembers the types it was given and computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.given: list[torch.dtype] = []
        self.tf32: list[bool] = []

    def forward(self, x: torch.Tensor, pair: Any = None, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        self.given += [
            x.dtype,
            *([t.dtype for t in pair] if pair else []),
            *([scale.dtype] if scale is not None else []),
        ]
        self.tf32.append(torch.backends.cuda.matmul.allow_tf32)
        return self.fc(x)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.ModuleDict({"first": Layer(), "norm": Layer()})
        self.head = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder["first"](x)
        x = self.encoder["norm"](x, (x, torch.zeros(1, dtype=torch.int64)), scale=x)
        return self.head(x)


def run(net: Net, precision: Precision) -> torch.Tensor:
    with torch.inference_mode(), precision.autocast():
        return net(torch.ones(1, 4))


def test_only_the_chosen_modules_compute_in_fp32() -> None:
    net = Net()
    assert keep_fp32.apply(net, ["encoder.norm"], BF16) == ("encoder.norm",)
    assert run(net, BF16).dtype == torch.bfloat16
    norm = net.encoder["norm"]
    assert norm.given == [torch.float32, torch.float32, torch.int64, torch.float32], "positional, nested and by name"
    assert net.head.given == [torch.float32], "what norm gave"


def test_the_result_is_that_of_fp32() -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(8, 4)
    with torch.inference_mode():
        exact = net.head(x)
        keep_fp32.apply(net, ["head"], BF16)
        with BF16.autocast():
            kept = net.head(x)
            low = net.encoder["first"](x)
    assert torch.equal(kept, exact)
    assert low.dtype == torch.bfloat16


def test_star_crosses_dots_and_the_names_are_told() -> None:
    assert keep_fp32.apply(Net(), ["*norm", "head.fc"], BF16) == ("encoder.norm", "head.fc")


def test_at_fp32_nothing_is_wrapped_but_names_are_still_checked() -> None:
    net, fp32 = Net(), resolve("fp32", CPU)
    keep_fp32.apply(net, ["head"], fp32)
    assert "forward" not in vars(net.head)
    with pytest.raises(SetupError, match="'haed' matches no module"):
        keep_fp32.apply(net, ["haed"], fp32)


def test_tf32_is_off_inside_and_on_again_outside() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    net, tf32 = Net(), Precision("tf32", "as configured", "cuda")
    keep_fp32.apply(net, ["encoder.norm"], tf32)
    try:
        tf32.configure()
        net(torch.ones(1, 4))
        assert (net.encoder["first"].tf32, net.encoder["norm"].tf32, net.head.tf32) == ([True], [False], [True])
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_patterns_without_a_module_are_all_told_with_near_names() -> None:
    with pytest.raises(SetupError) as caught:
        keep_fp32.apply(Net(), ["encoder.nrom", "q", "head"], BF16)
    told = str(caught.value)
    assert "'encoder.nrom' matches no module of the model (near it: encoder.norm" in told
    assert "'q' matches no module of the model (there are: encoder, encoder.first" in told
    assert "'head'" not in told


def test_weights_of_16_bits_cannot_compute_in_fp32() -> None:
    net = Net()
    net.head.half()
    with pytest.raises(SetupError, match=r"keep_fp32: head, head\.fc has weights of 16 bits"):
        keep_fp32.apply(net, ["head*"], BF16)


@pytest.mark.parametrize("model", [torch.jit.trace(torch.nn.ReLU(), torch.zeros(1)), abs])
def test_what_is_no_python_module_is_refused(model: Any) -> None:
    with pytest.raises(SetupError, match=r"keep_fp32 needs a torch\.nn\.Module of Python, and the model is"):
        keep_fp32.apply(model, ["*"], BF16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("wanted", ["bf16", "fp16", "tf32"])
def test_on_a_gpu_the_kept_module_is_strict_fp32(wanted: str) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    net = torch.nn.ModuleDict({"low": torch.nn.Linear(1024, 1024), "kept": torch.nn.Linear(1024, 1024)}).to(device)
    chosen = resolve(wanted, device)
    keep_fp32.apply(net, ["kept"], chosen)
    chosen.configure()
    x = torch.randn(256, 1024, device=device)
    errors = {}
    with torch.inference_mode():
        for name in ("low", "kept"):
            exact = torch.nn.functional.linear(x.double(), net[name].weight.double(), net[name].bias.double())
            with chosen.autocast():
                got = net[name](x)
            errors[name] = ((got.double() - exact).abs().max() / exact.abs().max()).item()
    resolve("fp32", device).configure()
    assert errors["kept"] < 2e-6 < 1e-4 < errors["low"], errors
