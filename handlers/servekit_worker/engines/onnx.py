"""ONNX graphs by onnxruntime, on memory that torch owns: inputs and outputs are not copied."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from servekit_worker.engines import onnx_file
from servekit_worker.engines.place import Place, check_batches
from servekit_worker.errors import SetupError

log = logging.getLogger(__name__)

_WAY_OUT = (
    "Export it with a dynamic batch axis: torch.onnx.export(model, (x,), 'NAME.onnx', dynamo=True, "
    "dynamic_shapes=({0: torch.export.Dim('batch')},))"
)
_DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
    "tensor(bool)": torch.bool,
    **{f"tensor({name})": getattr(torch, name) for name in ("int64", "int32", "int16", "int8", "uint8")},
}
_CASTS = (torch.float32, torch.float16)


class OnnxModel:
    """Calls the graph: tensors in, a tensor out, or a tuple of them when the graph has several outputs.

    Inputs are given in the graph's order or by name, and lie on the worker's device; float32 and float16
    are cast to each other where the graph wants so, anything else must be of the graph's own type.
    """

    def __init__(self, session: Any, device: torch.device, own: str, name: str) -> None:
        self.own, self.source = own, "the ONNX graph's own"
        self._session, self._device, self._name = session, device, name
        self._types = {node.name: node.type for node in session.get_inputs()}
        self._outputs = [(node.name, node.type) for node in session.get_outputs()]
        self._said = False

    def __call__(self, *batch: torch.Tensor, **named: torch.Tensor) -> Any:
        given = {**dict(zip(self._types, batch, strict=False)), **named}
        if len(batch) > len(self._types) or set(given) != set(self._types):
            raise SetupError(
                f"weights {self._name}: the graph takes {', '.join(self._types)}, but the handler gave "
                f"{len(batch)} tensors in order and {', '.join(named) or 'none'} by name. Override forward(batch)."
            )
        ready = {name: self._as_wanted(name, tensor) for name, tensor in given.items()}
        binding = self._session.io_binding()
        kind, index = self._device.type, self._device.index or 0
        for name, tensor in ready.items():
            element = np.dtype(str(tensor.dtype).removeprefix("torch."))
            binding.bind_input(name, kind, index, element.type, tuple(tensor.shape), tensor.data_ptr())
        for name, _ in self._outputs:
            binding.bind_output(name, kind, index)
        if kind == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # onnxruntime has a stream of its own
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        values = binding.get_outputs()
        outputs = tuple(_tensor(v, type_) for v, (_, type_) in zip(values, self._outputs, strict=True))
        return outputs[0] if len(outputs) == 1 else outputs

    def _as_wanted(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        wanted = _DTYPES[self._types[name]]
        if tensor.dtype != wanted:
            if tensor.dtype not in _CASTS or wanted not in _CASTS:
                raise SetupError(
                    f"weights {self._name}: the graph's input {name} is {self._types[name]}, but the handler gives "
                    f"{tensor.dtype}. Set handler.tensor.dtype to {str(wanted).removeprefix('torch.')}."
                )
            if not self._said:
                log.info("servekit: %s: input %s is cast from %s to %s", self._name, name, tensor.dtype, wanted)
                self._said = True
            tensor = tensor.to(wanted)
        return tensor.contiguous()


def load(path: Path, place: Place) -> OnnxModel:
    """The graph of ``path`` (with its external data beside it), for 1 to ``place.batch_size`` items."""
    ort = _onnxruntime(path.name)
    own = onnx_file.precision(path)
    # A deployment is a folder of links; onnxruntime looks for external data beside the file itself.
    real = path.resolve()
    provider = _provider(ort, place.device, path.name)
    try:
        session = ort.InferenceSession(str(real), _settings(ort, place), providers=[provider])
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise SetupError(f"weights {path.name}: onnxruntime {ort.__version__} cannot load it: {first}") from error
    if session.get_providers()[0] != provider[0]:
        raise _no_cuda(path.name, ort, place.device, "it started the graph on the CPU instead; its log says why")
    for node in session.get_inputs():
        if node.type not in _DTYPES:
            raise SetupError(
                f"weights {path.name}: the graph's input {node.name} is {node.type}, which is not supported. "
                f"Supported: {', '.join(_DTYPES)}."
            )
    shape = session.get_inputs()[0].shape if session.get_inputs() else []
    if shape and isinstance(shape[0], int):
        check_batches(path.name, shape[0], shape[0], place, _WAY_OUT)
    return OnnxModel(session, place.device, own, path.name)


def _settings(ort: Any, place: Place) -> Any:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = place.threads or 0  # 0: onnxruntime's choice
    settings.inter_op_num_threads = 1
    return settings


def _provider(ort: Any, device: torch.device, name: str) -> tuple[str, dict[str, str]]:
    if device.type != "cuda":
        return "CPUExecutionProvider", {}
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise _no_cuda(name, ort, device, f"it has {', '.join(ort.get_available_providers())}")
    # Left alone it would use TF32 for a graph of fp32.
    return "CUDAExecutionProvider", {"device_id": str(device.index or 0), "use_tf32": "0"}


def _no_cuda(name: str, ort: Any, device: torch.device, why: str) -> SetupError:
    return SetupError(
        f"weights {name}: this worker is on {device}, but onnxruntime {ort.__version__} cannot use CUDA here: {why}. "
        "Install onnxruntime-gpu (and uninstall onnxruntime) in the server's environment, or serve with --gpus none."
    )


def _onnxruntime(name: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise SetupError(
            f"weights {name}: ONNX needs onnxruntime, which cannot be imported here: {error}. Install onnxruntime "
            "(CPU) or onnxruntime-gpu in the server's environment."
        ) from error
    return onnxruntime


def _tensor(value: Any, type_: str) -> torch.Tensor:
    """An output as a tensor over the same memory; on the CPU a copy where onnxruntime is older than DLPack."""
    raw = value._ortvalue
    if not hasattr(raw, "to_dlpack"):
        if value.device_name() == "cpu":
            return torch.from_numpy(value.numpy())
        raise SetupError(
            "this onnxruntime cannot hand its outputs over without a copy (no DLPack); install a newer one."
        )
    tensor = torch.utils.dlpack.from_dlpack(raw.to_dlpack())
    return tensor.bool() if type_ == "tensor(bool)" else tensor
