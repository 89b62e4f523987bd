"""Every file format in TorchServe's own worker process: its answers are those of torch in this process."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from worker_process import lay_out, start

from servekit_worker import weights
from servekit_worker.engines import aoti, exported, onnx, onnx_file
from servekit_worker.engines.place import Place
from servekit_worker.errors import SetupError
from servekit_worker.options import ModelOptions
from servekit_worker.precision import of_engine

CPU = torch.device("cpu")
MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x)))) + torch.ones(4, device=x.device)
"""
AS_JSON = "application/json"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs g++ to compile a package")


def build() -> torch.nn.Module:
    names: dict[str, Any] = {}
    exec(MODEL, names)
    names["Net"].__module__ = "builtins"
    torch.manual_seed(3)
    return names["Net"]().eval()


def program(model: torch.nn.Module, batch: int = 3, **axis: Any) -> torch.export.ExportedProgram:
    shapes = ({0: torch.export.Dim("batch", **axis)},) if batch > 1 and axis.pop("dynamic", True) else None
    return torch.export.export(model, (torch.zeros(batch, 8),), dynamic_shapes=shapes)


def write_exported(path: Path, model: torch.nn.Module, **how: Any) -> Path:
    torch.export.save(program(model, **how), path)
    return path


def write_onnx(path: Path, model: torch.nn.Module, dynamic: bool = True, external: bool = False) -> Path:
    """Written with the onnx package: a graph x -> first -> relu -> last -> + 1, as the model computes."""
    helper = pytest.importorskip("onnx").helper
    from onnx import TensorProto, numpy_helper, save_model

    half = next(model.parameters()).dtype == torch.float16
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    state = {**model.state_dict(), "one": torch.ones(4, dtype=torch.float16 if half else torch.float32)}
    nodes = [
        helper.make_node("Gemm", ["x", "first.weight", "first.bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "last.weight", "last.bias"], ["c"], transB=1),
        helper.make_node("Add", ["c", "one"], ["y"]),
        helper.make_node("Greater", ["c", "one"], ["more"]),
    ]
    rows: Any = "batch" if dynamic else 2
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [rows, 8])],
        [helper.make_tensor_value_info("y", kind, [rows, 4])],
        [numpy_helper.from_array(value.numpy(), name) for name, value in state.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    how = {"save_as_external_data": True, "location": path.name + ".data", "size_threshold": 0} if external else {}
    save_model(made, str(path), **how)
    return path


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    return build()


@pytest.fixture(scope="module")
def compiled(net: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An AOTInductor package for batches of 2 to 64 (as torch exports 1 to 64)."""
    return write_aoti(tmp_path_factory.mktemp("aoti") / "net.pt2", program(net, min=1, max=64))


def write_aoti(path: Path, exported_program: torch.export.ExportedProgram) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(exported_program, package_path=str(path))
    return path


def section(model: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"schema": 1, "kind": "tensor", "threads": 1, "model": model, "tensor": {"input_shape": [8]}, **more}


def check_served(folder: Path, model: dict[str, Any], files: dict[str, Any], net: torch.nn.Module, own: str) -> str:
    """Serve ``files``, compare single items and a full batch with ``net``, and return what the worker printed."""
    served = lay_out(folder, "tensor_handler.py", section(model), files)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(5))
    expected = net(x).tolist()
    bodies = [(json.dumps(row).encode(), AS_JSON) for row in x.tolist()]
    with start(served) as worker:
        assert worker.load(served, "tensor_handler.py", batch_size=4) == 200, worker.output
        report = json.loads((worker.reports / f"m-{worker.process.pid}.json").read_text())
        assert (report["precision"], report["precision_reason"]) == ("fp32", own)
        assert report["warmup_batches"] == [1, 4]
        (alone,) = worker.predict(bodies[0])
        batch = worker.predict(*bodies)
        for answer, row in zip([alone, *batch], [expected[0], *expected], strict=True):
            assert answer.status == 200, worker.output
            assert answer.json() == pytest.approx(row, abs=1e-5)
        return worker.output


def test_safetensors(tmp_path: Path, net: torch.nn.Module) -> None:
    library = pytest.importorskip("safetensors.torch")
    model = {"format": "safetensors", "weights": "w.safetensors", "file": "model.py", "class": "Net"}
    files = {"model.py": MODEL, "w.safetensors": library.save(dict(net.state_dict()))}
    check_served(tmp_path, model, files, net, "auto: the CPU")


def test_exported(tmp_path: Path, net: torch.nn.Module) -> None:
    raw = write_exported(tmp_path / "e.pt2", net).read_bytes()
    check_served(tmp_path, {"format": "exported", "weights": "e.pt2"}, {"e.pt2": raw}, net, "auto: the CPU")


@needs_compiler
def test_aoti(tmp_path: Path, net: torch.nn.Module, compiled: Path) -> None:
    files = {"c.pt2": compiled.read_bytes()}
    reason = "compiled into the AOTInductor package"
    check_served(tmp_path, {"format": "aoti", "weights": "c.pt2"}, files, net, reason)


@pytest.mark.parametrize("external", [False, True])
def test_onnx_also_with_its_weights_in_a_file_beside_it(tmp_path: Path, net: torch.nn.Module, external: bool) -> None:
    pytest.importorskip("onnxruntime")
    path = write_onnx(tmp_path / "n.onnx", net, external=external)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(files) == ({"n.onnx", "n.onnx.data"} if external else {"n.onnx"})
    check_served(tmp_path, {"format": "onnx", "weights": path.name}, files, net, "the ONNX graph's own")


def test_a_graph_of_torchs_own_exporter_is_served_too(tmp_path: Path, net: torch.nn.Module) -> None:
    pytest.importorskip("onnxscript"), pytest.importorskip("onnxruntime")
    shapes = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        net, (torch.zeros(3, 8),), str(tmp_path / "t.onnx"), dynamo=True, dynamic_shapes=shapes, verbose=False
    )
    model, x = onnx.load(tmp_path / "t.onnx", Place(threads=1, batch_size=8)), torch.randn(8, 8)
    torch.testing.assert_close(model(x), net(x))
    torch.testing.assert_close(model(x[:1]), net(x[:1]))


STATIC: dict[str, tuple[str, Callable[[Path, torch.nn.Module], Path], str]] = {
    "exported": ("exported", lambda path, net: write_exported(path, net, batch=2, dynamic=False), "torch.export"),
    "onnx": ("onnx", lambda path, net: write_onnx(path, net, dynamic=False), "torch.onnx.export"),
    "too small": ("exported", lambda path, net: write_exported(path, net, max=3), "or set batchSize to 3."),
}


@pytest.mark.parametrize(("form", "write", "told"), STATIC.values(), ids=STATIC)
def test_a_batch_axis_that_does_not_fit_ends_the_worker(
    tmp_path: Path, net: torch.nn.Module, form: str, write: Callable[[Path, torch.nn.Module], Path], told: str
) -> None:
    name = "m.onnx" if form == "onnx" else "m.pt2"
    raw = write(tmp_path / name, net).read_bytes()
    folder = lay_out(tmp_path, "tensor_handler.py", section({"format": form, "weights": name}), {name: raw})
    with start(folder) as worker:
        assert worker.load(folder, "tensor_handler.py", batch_size=4) == -1
        assert f"SetupError: weights {name}: its input takes batches of " in worker.output
        assert "with batchSize 4 the server sends batches of 1 to 4 items" in worker.output
        assert told in worker.output


@needs_compiler
def test_code_compiled_for_one_batch_size_is_not_run_with_another(tmp_path: Path, net: torch.nn.Module) -> None:
    """Run unchecked it reads past the batch; here even a direct call is refused."""
    path = write_aoti(tmp_path / "s.pt2", program(net, batch=2, dynamic=False))
    with pytest.raises(SetupError, match=r"s\.pt2: its input takes batches of exactly 2, but with batchSize 4"):
        aoti.load(path, Place(batch_size=4))


@needs_compiler
def test_compiled_code_checks_its_inputs(compiled: Path) -> None:
    with pytest.raises(SetupError, match=r"takes batches of 2 to 64, but with batchSize 65.*or set batchSize to 64"):
        aoti.load(compiled, Place(batch_size=65))
    model = aoti.load(compiled, Place(batch_size=64))
    with pytest.raises(RuntimeError, match="expected to be <= 64, but got: 65"):
        model(torch.zeros(65, 8))
    with pytest.raises(RuntimeError, match="unmatched dtype"):
        model(torch.zeros(2, 8, dtype=torch.float64))


@needs_compiler
def test_autocast_has_no_part_in_compiled_code(compiled: Path, net: torch.nn.Module) -> None:
    model, x = aoti.load(compiled, Place(batch_size=4)), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = model(x)
    assert torch.equal(inside, model(x))
    for wanted in ("bf16", "fp16", "tf32"):
        with pytest.raises(SetupError, match=f"precision {wanted} would have no effect: compiled into the AOTInductor"):
            of_engine(model, wanted, CPU)


def test_autocast_reaches_an_exported_program(tmp_path: Path, net: torch.nn.Module) -> None:
    model = exported.load(write_exported(tmp_path / "e.pt2", net), Place(batch_size=4))
    chosen, x = of_engine(model, "bf16", CPU), torch.randn(4, 8)
    with torch.inference_mode():
        exact = model(x)
        with chosen.autocast():
            low, eager = model(x), net(x)
    assert torch.equal(low, eager), "as in the model itself"
    assert not torch.equal(low, exact)


class Casts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).to(torch.float32).exp()


def test_a_program_that_asserts_its_types_says_so_under_autocast(tmp_path: Path) -> None:
    model = exported.load(write_exported(tmp_path / "e.pt2", Casts().eval()), Place(batch_size=4))
    assert model.asserts_dtypes
    chosen = of_engine(model, "bf16", CPU)
    told = pytest.raises(SetupError, match=r"e\.pt2: the program was traced with a type that autocast changes")
    with torch.inference_mode(), chosen.autocast(), told:
        model(torch.zeros(2, 8))
    assert model(torch.zeros(2, 8)).dtype == torch.float32


def test_a_program_with_weights_of_16_bits_has_that_precision(tmp_path: Path) -> None:
    layer = torch.nn.Linear(8, 4).bfloat16().eval()
    made = torch.export.export(layer, (torch.zeros(3, 8).bfloat16(),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(made, tmp_path / "h.pt2")
    model = exported.load(tmp_path / "h.pt2", Place(batch_size=4))
    assert of_engine(model, "auto", CPU).name == "bf16"
    with pytest.raises(SetupError, match="the exported program's own is bf16"):
        of_engine(model, "fp32", CPU)


def test_an_exported_program_never_falls_back_to_unpickling(tmp_path: Path, net: torch.nn.Module) -> None:
    """torch.export.load unpickles sample inputs in full when the safe reader fails; here it must not."""
    import zipfile

    path, ran = write_exported(tmp_path / "e.pt2", net), tmp_path / "ran"
    buffer = io.BytesIO()
    torch.save(Runs(ran), buffer)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as new:
        for name in old.namelist():
            new.writestr(name, buffer.getvalue() if "sample_inputs" in name else old.read(name))
    with pytest.raises(SetupError, match=r"evil\.pt2: torch .* cannot load it as an exported program"):
        exported.load(tmp_path / "evil.pt2", Place())
    assert not ran.exists()


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_onnx_casts_float_and_half_and_nothing_else(
    tmp_path: Path, net: torch.nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxruntime")
    path = write_onnx(tmp_path / "h.onnx", build().half())
    model, x = onnx.load(path, Place(batch_size=4)), torch.randn(4, 8)
    assert of_engine(model, "auto", CPU).name == of_engine(model, "fp16", CPU).name == "fp16"
    with pytest.raises(SetupError, match="precision fp32 would have no effect: the ONNX graph's own is fp16"):
        of_engine(model, "fp32", CPU)
    with caplog.at_level("INFO"):
        got = model(x)
        model(x)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), net(x), atol=1e-2, rtol=1e-2)
    assert caplog.text.count("input x is cast from torch.float32 to torch.float16") == 1
    with pytest.raises(SetupError, match=r"input x is tensor\(float16\), but the handler gives torch\.int64"):
        model(torch.zeros(4, 8, dtype=torch.int64))


def test_onnx_outputs_inputs_and_memory(tmp_path: Path, net: torch.nn.Module) -> None:
    """Several outputs, bool among them; inputs by order and by name, contiguous or not; answers stay put."""
    pytest.importorskip("onnxruntime")
    import onnx as library

    path = write_onnx(tmp_path / "n.onnx", net)
    made = library.load(str(path))
    made.graph.output.append(library.helper.make_tensor_value_info("more", library.TensorProto.BOOL, ["batch", 4]))
    library.save(made, str(path))
    model, x = onnx.load(path, Place(batch_size=8)), torch.randn(8, 6).T
    wide = torch.cat([x, x[:, :0]], 1)
    first, more = model(x=wide)
    torch.testing.assert_close(first, net(wide))
    assert torch.equal(more, net(wide) - 1 > 1)
    before = first.clone()
    model(torch.zeros(8, 8))
    assert torch.equal(first, before), "an answer is not overwritten by the next batch"
    with pytest.raises(SetupError, match="the graph takes x, but the handler gave 2 tensors in order and none by name"):
        model(wide, wide)


@pytest.mark.parametrize("raw", [b"no protobuf at all", b"\x08", b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x02\x2a\x07"])
def test_garbage_is_no_onnx_file(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "g.onnx"
    path.write_bytes(raw)
    with pytest.raises(SetupError, match=r"weights g\.onnx: (not an ONNX file|onnxruntime .* cannot load it)"):
        onnx.load(path, Place())


@pytest.mark.parametrize(("half", "own"), [(False, "fp32"), (True, "fp16")])
@pytest.mark.parametrize("external", [False, True])
def test_the_type_of_an_onnx_graphs_weights(tmp_path: Path, half: bool, own: str, external: bool) -> None:
    model = build().half() if half else build()
    assert onnx_file.precision(write_onnx(tmp_path / "n.onnx", model, external=external)) == own


def test_every_engine_loads_through_weights(tmp_path: Path, net: torch.nn.Module) -> None:
    write_exported(tmp_path / "e.pt2", net)
    model = weights.load_model(ModelOptions("exported", "e.pt2"), tmp_path)
    assert model(torch.zeros(1, 8)).shape == (1, 4)
    with pytest.raises(SetupError, match=r"weights none\.onnx: not in the archive"):
        weights.load_model(ModelOptions("onnx", "none.onnx"), tmp_path)


gpu = pytest.mark.gpu
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@gpu
@no_gpu
def test_an_exported_program_moves_to_the_gpu_with_its_constants(tmp_path: Path, net: torch.nn.Module) -> None:
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    model = exported.load(write_exported(tmp_path / "e.pt2", net), Place(device, batch_size=4))
    x = torch.randn(4, 8)
    got = model(x.to(device))
    assert got.device == device
    torch.testing.assert_close(got.cpu(), net(x), atol=1e-4, rtol=1e-4)


@gpu
@no_gpu
def test_a_package_compiled_for_this_gpu_runs_on_it(tmp_path: Path, net: torch.nn.Module) -> None:
    device = torch.device("cuda", 0)
    x = torch.zeros(3, 8, device=device)
    made = torch.export.export(
        build().to(device), (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},)
    )
    path = write_aoti(tmp_path / "g.pt2", made)
    alone = "import sys, torch; torch.zeros(1).cuda(); torch._inductor.aoti_load_package(sys.argv[1])"
    if (code := subprocess.run((sys.executable, "-c", alone, str(path)), check=False).returncode) < 0:
        pytest.skip(f"torch {torch.__version__} ended by signal {-code} when it loaded its own package")
    model, x = aoti.load(path, Place(device, batch_size=8)), torch.randn(8, 8)
    for rows in (1, 8):
        torch.testing.assert_close(model(x[:rows].to(device)).cpu(), net(x[:rows]), atol=1e-3, rtol=1e-3)
    with pytest.raises(SetupError, match="compiled for cuda, but this worker is on cpu"):
        aoti.load(path, Place())


@gpu
@no_gpu
@pytest.mark.parametrize("half", [False, True])
def test_onnx_on_the_gpu_reads_and_writes_torchs_memory(tmp_path: Path, net: torch.nn.Module, half: bool) -> None:
    runtime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        pytest.skip("this onnxruntime is not onnxruntime-gpu")
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    path = write_onnx(tmp_path / "n.onnx", build().half() if half else net)
    model, x = onnx.load(path, Place(device, batch_size=8)), torch.randn(8, 8)
    got = model(x.to(device))
    assert got.device == device
    tolerance = 1e-2 if half else 1e-5
    torch.testing.assert_close(got.cpu().float(), net(x), atol=tolerance, rtol=tolerance)


@gpu
@no_gpu
def test_onnx_with_a_gpu_and_without_onnxruntime_gpu_is_refused(tmp_path: Path, net: torch.nn.Module) -> None:
    runtime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in runtime.get_available_providers():
        pytest.skip("onnxruntime-gpu is installed")
    with pytest.raises(SetupError, match=r"this worker is on cuda:0, but onnxruntime .* cannot use CUDA"):
        onnx.load(write_onnx(tmp_path / "n.onnx", net), Place(torch.device("cuda", 0)))
