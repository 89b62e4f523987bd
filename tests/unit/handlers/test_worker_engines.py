"""What engines check before anything is loaded: batch axes, packages of machine code, built-in precision."""

from __future__ import annotations

import json
import os
import platform
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor

from servekit_worker.engines import aoti, exported, onnx, onnx_file
from servekit_worker.engines.place import Place, check_batches
from servekit_worker.errors import SetupError
from servekit_worker.precision import of_engine

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("smallest", "largest", "batch"), [(1, None, 64), (2, None, 1), (1, 8, 8), (2, 8, 8), (1, 1, 1), (0, None, 4)]
)
def test_batches_that_fit(smallest: int, largest: int | None, batch: int) -> None:
    check_batches("m", smallest, largest, Place(batch_size=batch), "Way out")


@pytest.mark.parametrize(
    ("smallest", "largest", "batch", "told"),
    [
        (4, 4, 8, "takes batches of exactly 4, but with batchSize 8 the server sends batches of 1 to 8 items. Out."),
        (4, 4, 4, "takes batches of exactly 4, but with batchSize 4 the server sends batches of 1 to 4 items. Out."),
        (2, 2, 1, "takes batches of exactly 2, but with batchSize 1 the server sends batches of 1 item. Out."),
        (
            1,
            1,
            8,
            "takes batches of exactly 1, but with batchSize 8 the server sends batches of 1 to 8 items. Out, or set ",
        ),
        (2, 8, 9, "takes batches of 2 to 8, but with batchSize 9 the server sends batches of 1 to 9 items. Out, or "),
        (3, None, 9, "takes batches of 3 or more, but with batchSize 9 the server sends batches of 1 to 9 items. Out."),
        (3, 4, 2, "takes batches of 3 to 4, but with batchSize 2 the server sends batches of 1 to 2 items. Out."),
    ],
)
def test_batches_that_do_not_fit(smallest: int, largest: int | None, batch: int, told: str) -> None:
    with pytest.raises(SetupError) as caught:
        check_batches("m.pt2", smallest, largest, Place(batch_size=batch), "Out")
    assert f"weights m.pt2: its input {told}" in str(caught.value)
    assert str(caught.value).endswith(("Out.", f"set batchSize to {largest}."))


HERE = {"AOTI_DEVICE_KEY": "cpu", "AOTI_PLATFORM": sys.platform, "AOTI_MACHINE": platform.machine()}
SOURCE = """
static void check_input_0(AtenTensorHandle* input_handles) {{
    {checks}
}}
static void check_input_1(AtenTensorHandle* input_handles) {{
    if (9 != arg1_1_size[0]) {{
    }}
}}
cached_torch_dtype_{dtype}
"""


def package(path: Path, metadata: Any = HERE, top: str = "m/", **members: str) -> Path:
    """A package as torch writes one, with a top folder (2.7 and later) or without (2.6)."""
    folder = f"{top}data/aotinductor/model/"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{top}archive_format", "pt2")
        if metadata is not None:
            archive.writestr(f"{folder}abc_metadata.json", json.dumps(metadata))
        archive.writestr(f"{folder}abc.so", b"\x7fELF")
        for name, text in members.items():
            archive.writestr(f"{folder}{name}.cpp", text)
    return path


@pytest.mark.parametrize("top", ["m/", ""])
def test_a_package_is_read_with_and_without_a_top_folder(tmp_path: Path, top: str) -> None:
    found = aoti.read(package(tmp_path / "m.pt2", top=top))
    assert (found.metadata, found.own, found.smallest, found.largest) == (HERE, "fp32", 1, None)


@pytest.mark.parametrize(
    ("checks", "bounds"),
    [
        ("if (4 != arg0_1_size[0]) {\n    }\n    if (8 != arg0_1_size[1]) {", (4, 4)),
        ("if (arg0_1_size[0] < 2) {\n    }\n    if (arg0_1_size[0] > 64) {", (2, 64)),
        ("if (arg0_1_size[0] > 64) {", (1, 64)),
        ("if (8 != arg0_1_size[1]) {", (1, None)),
    ],
)
def test_the_batch_axis_is_what_the_packages_source_checks(
    tmp_path: Path, checks: str, bounds: tuple[int, int | None]
) -> None:
    found = aoti.read(package(tmp_path / "m.pt2", wrapper=SOURCE.format(checks=checks, dtype="float32")))
    assert (found.smallest, found.largest) == bounds


@pytest.mark.parametrize(("dtype", "own"), [("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16")])
def test_the_precision_is_what_the_packages_source_names(tmp_path: Path, dtype: str, own: str) -> None:
    assert aoti.read(package(tmp_path / "m.pt2", wrapper=SOURCE.format(checks="", dtype=dtype))).own == own


def test_files_that_are_no_package(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(b"no zip")
    for load in (aoti.load, exported.load):
        with pytest.raises(SetupError, match=r"weights m\.pt2: not a \.pt2"):
            load(path, Place())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data/aotinductor/other/x.so", b"")
    with pytest.raises(SetupError, match="must hold 'model'; it has other"):
        aoti.load(path, Place())
    with pytest.raises(SetupError, match="does not record the device"):
        aoti.load(package(path, metadata=None), Place())
    with pytest.raises(SetupError, match=r"abc_metadata\.json is not JSON"):
        aoti.load(package(path, metadata=[1]), Place())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"AOTI_DEVICE_KEY": "cuda"}, "compiled for cuda, but this worker is on cpu"),
        ({"AOTI_PLATFORM": "win32"}, f"platform win32 in the package and {sys.platform} here"),
        ({"AOTI_MACHINE": "riscv64"}, f"machine riscv64 in the package and {platform.machine()} here"),
        ({"AOTI_CPU_ISA": "AVX512 AMX_TILE"}, "AVX512 AMX_TILE, and this processor lacks amx_tile, avx512bw"),
    ],
)
def test_machine_code_for_another_machine_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], told: str
) -> None:
    monkeypatch.setattr(aoti, "cpu_flags", lambda: frozenset({"avx2", "avx512f", "avx512dq", "avx512vl"}))
    with pytest.raises(SetupError) as caught:
        aoti.load(package(tmp_path / "m.pt2", {**HERE, **change}), Place())
    assert told in str(caught.value)
    assert "aoti_compile_and_package" in str(caught.value)


def test_machine_code_for_another_gpu_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    metadata = {**HERE, "AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "90", "AOTI_CPU_ISA": "SVE"}
    with pytest.raises(SetupError, match="compute capability 90 in the package and 80 here"):
        aoti.load(package(tmp_path / "m.pt2", metadata), Place(GPU))
    with pytest.raises(SetupError, match="compiled for cpu, but this worker is on cuda:1"):
        aoti.load(package(tmp_path / "m.pt2"), Place(GPU))


def test_an_old_package_that_records_less_is_checked_by_what_it_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path, device_index=-1: (path, device_index))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.delenv("AOTI_RUNTIME_CHECK_INPUTS", raising=False)
    path = package(tmp_path / "m.pt2", {"AOTI_DEVICE_KEY": "cuda"}, top="")
    assert aoti.load(path, Place(GPU, batch_size=8))._compiled == (str(path), 1), "on the assigned GPU"
    assert os.environ["AOTI_RUNTIME_CHECK_INPUTS"] == "1"
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path: path)
    assert aoti.load(path, Place(GPU))._compiled == str(path), "torch 2.6 takes the current device"


def test_what_torch_says_of_a_package_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, device_index: int = -1) -> None:
        raise RuntimeError("undefined symbol: aoti_torch_x\nC++ frames")

    monkeypatch.setattr(torch._inductor, "aoti_load_package", refuse)
    monkeypatch.setenv("AOTI_RUNTIME_CHECK_INPUTS", "1")
    with pytest.raises(SetupError, match=r"cannot load this AOTInductor package: undefined symbol: aoti_torch_x Comp"):
        aoti.load(package(tmp_path / "m.pt2"), Place())


def test_one_item_is_sent_twice_to_code_for_two_or_more() -> None:
    given: list[list[int]] = []

    def compiled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        given.append([*x.shape, *y.shape])
        return x * 2, {"y": y}

    model = aoti.AotiModel(compiled, aoti.Package(HERE, "fp32", 2, 64))
    double, rest = model(torch.ones(1, 3), y=torch.zeros(1))
    assert (double.tolist(), rest["y"].tolist()) == ([[2.0, 2.0, 2.0]], [0.0])
    assert len(model(torch.ones(5, 3), torch.zeros(5))[0]) == 5
    assert given == [[2, 3, 2], [5, 3, 5]]


def pt2(path: Path, entries: dict[str, Any], kind: str = "weights") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/models/model.json", "{}")
        archive.writestr(f"m/data/{kind}/model_{kind}_config.json", json.dumps({"config": entries}))
    return path


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("weights", {"use_pickle": True, "path_name": "weight_0"}),
        ("constants", {"use_pickle": False, "path_name": "opaque_obj_0"}),
    ],
)
def test_an_exported_program_is_never_unpickled(tmp_path: Path, kind: str, entry: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match=r"weights m\.pt2: fc\.w would have to be unpickled"):
        exported.load(pt2(tmp_path / "m.pt2", {"fc.w": entry}, kind), Place())


def test_an_exported_program_of_a_gpu_belongs_to_that_gpu(tmp_path: Path) -> None:
    entry = {"use_pickle": False, "path_name": "w", "tensor_meta": {"device": {"type": "cuda", "index": 0}}}
    path = pt2(tmp_path / "m.pt2", {"fc.w": entry})
    for device in (CPU, GPU):
        with pytest.raises(SetupError, match=f"exported on cuda:0, but this worker is on {device}. Move the model"):
            exported.load(path, Place(device))


def test_an_exported_file_with_compiled_code_belongs_to_aoti(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"Set model\.format to aoti"):
        exported.load(package(tmp_path / "m.pt2"), Place())


def test_a_damaged_exported_file_is_told_by_torch(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"weights m\.pt2: torch .* cannot load it as an exported program"):
        exported.load(pt2(tmp_path / "m.pt2", {}), Place())
    with zipfile.ZipFile(tmp_path / "n.pt2", "w") as archive:
        archive.writestr("n/data/weights/model_weights_config.json", "[]")
    with pytest.raises(SetupError, match="its list of tensors is damaged"):
        exported.load(tmp_path / "n.pt2", Place())


def engine(own: str | None, **changes: Any) -> Any:
    return SimpleNamespace(**{"own": own, "source": "the graph's own", "operations": set(), **changes})


def test_a_built_in_precision_is_taken_and_named() -> None:
    chosen = of_engine(engine("fp16"), "auto", CPU)
    assert (chosen.name, chosen.reason, chosen.own) == ("fp16", "the graph's own", True)
    with chosen.autocast():
        assert not torch.is_autocast_enabled("cpu"), "the graph computes, autocast would claim too much"
    assert of_engine(engine("fp32"), "fp32", CPU, "proved").reason == "proved"


@pytest.mark.parametrize(("own", "wanted"), [("fp32", "bf16"), ("fp32", "tf32"), ("fp32", "fp16"), ("fp16", "fp32")])
def test_a_precision_without_effect_is_refused(own: str, wanted: str) -> None:
    with pytest.raises(SetupError, match=f"precision {wanted} would have no effect: the graph's own is {own}"):
        of_engine(engine(own), wanted, CPU)


def test_precision_of_a_program_of_torch_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert of_engine(engine(None, asserts_dtypes=False), "auto", GPU).name == "bf16"
    assert of_engine(engine(None, asserts_dtypes=True), "auto", GPU).name == "fp32"
    assert of_engine(engine(None, asserts_dtypes=True), "tf32", GPU, "why").reason == "why"
    plain = engine(None, asserts_dtypes=False, operations={"aten.convolution.default"})
    assert of_engine(plain, "bf16", GPU).name == "bf16"
    with pytest.raises(SetupError, match="precision bf16 would have no effect on the program's convolutions"):
        of_engine(plain, "bf16", CPU)


def test_onnx_without_onnxruntime_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SetupError, match=r"weights m\.onnx: ONNX needs onnxruntime.*Install onnxruntime \(CPU\) or"):
        onnx.load(tmp_path / "m.onnx", Place())


class FakeRuntime:
    """onnxruntime on a machine whose CUDA provider is missing, or fails to start and gives way to the CPU."""

    __version__ = "1.0"
    SessionOptions = SimpleNamespace

    def __init__(self, *available: str) -> None:
        self.available = list(available)
        self.asked: list[Any] = []

    def get_available_providers(self) -> list[str]:
        return self.available

    def InferenceSession(self, path: str, settings: Any, providers: list[Any]) -> Any:
        self.asked = [settings, *providers]
        return SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("available", "told"),
    [
        (["CPUExecutionProvider"], "it has CPUExecutionProvider"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], "it started the graph on the CPU instead"),
    ],
)
def test_the_cpu_never_stands_in_for_the_gpu_of_an_onnx_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: list[str], told: str
) -> None:
    runtime = FakeRuntime(*available)
    monkeypatch.setattr(onnx, "_onnxruntime", lambda _: runtime)
    monkeypatch.setattr(onnx_file, "precision", lambda _: "fp32")
    with pytest.raises(SetupError, match=r"this worker is on cuda:1, but onnxruntime 1\.0 cannot use CUDA") as caught:
        onnx.load(tmp_path / "m.onnx", Place(GPU, threads=2))
    assert told in str(caught.value)
    assert "Install onnxruntime-gpu" in str(caught.value)
    if runtime.asked:
        assert runtime.asked[0].intra_op_num_threads == 2
        assert runtime.asked[1] == ("CUDAExecutionProvider", {"device_id": "1", "use_tf32": "0"})


def test_outputs_of_an_onnxruntime_without_dlpack() -> None:
    value = SimpleNamespace(_ortvalue=object(), device_name=lambda: "cpu", numpy=lambda: np.ones(2, dtype=np.float32))
    assert onnx._tensor(value, "tensor(float)").tolist() == [1.0, 1.0]
    value.device_name = lambda: "cuda"
    with pytest.raises(SetupError, match="cannot hand its outputs over without a copy"):
        onnx._tensor(value, "tensor(float)")
