"""Which names a checkpoint may mention, and what calling one of them amounts to here.

The list is that of ``torch.load(weights_only=True)`` (plus defaultdict): who loads the file afterwards takes no
more than we do. Everything else is refused, however harmless its name looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from servekit.system.model_files.pickle_values import (
    MAX_DIMENSIONS,
    Built,
    Malformed,
    Opaque,
    Storage,
    Symbol,
    Tensor,
    number,
    numbers,
)
from servekit.system.model_files.torch_dtypes import ITEM_SIZES, STORAGES

REFUSED = ""
_TENSOR_CLASSES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_QSCHEMES = ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric")
_JIT_LISTS = ("build_boollist", "build_doublelist", "build_intlist", "build_tensorlist")
_PLAIN_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")


def _allowed() -> dict[str, str]:
    kinds = {
        "collections.OrderedDict": "ordered",
        "collections.Counter": "ordered",
        "collections.defaultdict": "ordered",
        "torch.Tensor": "tensor_class",
        "torch.nn.parameter.Parameter": "parameter",
        "torch.Size": "size",
        "torch.device": "device",
        "torch.serialization._get_layout": "layout",
        "_codecs.encode": "bytes",
        "torch._utils._rebuild_tensor": "rebuild_tensor",
        "torch._utils._rebuild_tensor_v2": "rebuild_tensor",
        "torch._utils._rebuild_tensor_v3": "rebuild_tensor_v3",
        "torch._utils._rebuild_parameter": "parameter",
        "torch._utils._rebuild_parameter_with_state": "parameter",
        "torch._utils._rebuild_qtensor": "quantized",
        "torch._utils._rebuild_sparse_tensor": "sparse",
        "torch._utils._rebuild_nested_tensor": "nested",
        "torch._utils._rebuild_meta_tensor_no_storage": "meta",
        "torch._utils._rebuild_wrapper_subclass": "wrapper_subclass",
        "torch._utils._rebuild_device_tensor_from_cpu_tensor": "device_tensor",
        "torch._utils._rebuild_device_tensor_from_numpy": "device_tensor",
        "torch._tensor._rebuild_from_type_v2": "from_type",
        "torch.storage.UntypedStorage": "storage",
        "torch.storage.TypedStorage": "storage",
        "torch.per_channel_affine_float_qparams": "constant",
    }
    for module in ("builtins", "__builtin__"):  # Python 3's name, and what protocol 2 writes for it
        kinds |= {f"{module}.{name}": name for name in ("bytearray", "complex", "set")}
    kinds |= {f"torch.{name}": "dtype" for name in ITEM_SIZES}
    kinds |= {f"torch.{name}": "constant" for name in _QSCHEMES}
    for module in ("torch", "torch.cuda"):
        kinds |= {f"{module}.{name}": "storage" for name in STORAGES}
        kinds |= {f"{module}.{name}Tensor": "tensor_class" for name in _TENSOR_CLASSES}
        kinds |= {f"{module}.sparse.{name}Tensor": "tensor_class" for name in _TENSOR_CLASSES}
    return kinds


ALLOWED: Mapping[str, str] = _allowed()
"""module.name -> kind. A name with a dot of its own is never in it: see :func:`symbol`."""


def symbol(module: str, name: str, *, script: bool = False) -> Symbol:
    """The inert symbol of a global; its kind is REFUSED for what is not on the list.

    ``script``: the pickle belongs to TorchScript, whose own classes are names in its archive and not in Python.
    """
    full = f"{module}.{name}"
    if script and (module == "__torch__" or module.startswith("__torch__.")):
        return Symbol(full, "script_class")
    if script and module == "torch.jit._pickle":
        kinds = {"build_tensor_from_id": "constant_tensor", "restore_type_tag": "first"}
        return Symbol(full, kinds.get(name, "first" if name in _JIT_LISTS else REFUSED))
    # A dotted name is followed attribute by attribute when it is loaded: torch.serialization + "os.system".
    return Symbol(full, REFUSED if "." in name else ALLOWED.get(full, REFUSED))


def call(function: Symbol, args: tuple[Any, ...], offset: int) -> Any:
    """What REDUCE, NEWOBJ and their like leave on the stack. Malformed for arguments that make no sense."""
    maker = _MAKERS.get(function.kind)
    if maker is not None:
        try:
            return maker(args, offset)
        except (IndexError, ValueError, TypeError) as error:
            raise Malformed(f"{function.name} has arguments that it cannot have", offset) from error
    if function.kind in (REFUSED, "script_class"):
        return Built(function.name)
    if function.kind in ("dtype", "storage", "constant"):
        raise Malformed(f"{function.name} is called, which no checkpoint does", offset)
    return Opaque(function.kind)


def _rebuild(args: tuple[Any, ...], offset: int) -> Tensor:
    storage, start, shape, strides = args[:4]
    if not isinstance(storage, Storage):
        raise Malformed("a tensor is made of something that is no storage", offset)
    odd = "is a conjugated or negated view" if len(args) > 6 and args[6] else ""
    return _tensor(storage, storage.dtype or "uint8", (start, shape, strides), odd, offset)


def _rebuild_v3(args: tuple[Any, ...], offset: int) -> Tensor:
    storage, start, shape, strides, _, _, dtype = args[:7]
    if not isinstance(storage, Storage) or not isinstance(dtype, Symbol) or dtype.kind != "dtype":
        raise Malformed("a tensor is made of something that is no storage or no type", offset)
    odd = "is a conjugated or negated view" if len(args) > 7 and args[7] else ""
    return _tensor(storage, dtype.name.removeprefix("torch."), (start, shape, strides), odd, offset)


def _tensor(storage: Storage, dtype: str, view: tuple[Any, Any, Any], odd: str, offset: int) -> Tensor:
    start, shape, strides = number(view[0], offset), numbers(view[1], offset), numbers(view[2], offset)
    if len(shape) != len(strides):
        raise Malformed("a tensor has more dimensions than strides, or fewer", offset)
    return Tensor(storage, dtype, start, shape, strides, odd)


def _parameter(args: tuple[Any, ...], offset: int) -> Tensor:
    if not isinstance(args[0], Tensor):
        raise Malformed("a parameter is made of something that is no tensor", offset)
    return args[0]


def _from_type(args: tuple[Any, ...], offset: int) -> Any:
    function, of, inner = args[:3]
    if not isinstance(function, Symbol) or not isinstance(of, Symbol) or not isinstance(inner, tuple):
        raise Malformed("a tensor subclass is made of something that is no function", offset)
    if function.kind not in ("rebuild_tensor", "rebuild_tensor_v3", "parameter", "quantized", "wrapper_subclass"):
        return Built(function.name) if function.kind == REFUSED else Tensor(None, None, odd=f"is a {of.name}")
    made = call(function, inner, offset)
    if isinstance(made, Tensor) and of.name not in _PLAIN_TENSORS:
        return Tensor(None, made.dtype, shape=made.shape, odd=f"is a {of.name}")
    return made


def _odd(why: str) -> Callable[[tuple[Any, ...], int], Tensor]:
    return lambda args, offset: Tensor(None, None, odd=why)


def _quantized(args: tuple[Any, ...], offset: int) -> Tensor:
    made = _rebuild((*args[:4],), offset)
    return Tensor(None, made.dtype, shape=made.shape, odd="is quantized")


def _size(args: tuple[Any, ...], offset: int) -> tuple[int, ...]:
    shape = args[0] if args else ()
    return numbers(tuple(shape[: MAX_DIMENSIONS + 1]) if isinstance(shape, (list, tuple)) else shape, offset)


def _first(args: tuple[Any, ...], _: int) -> Any:
    return args[0]


_MAKERS: Mapping[str, Callable[[tuple[Any, ...], int], Any]] = {
    "rebuild_tensor": _rebuild,
    "rebuild_tensor_v3": _rebuild_v3,
    "parameter": _parameter,
    "from_type": _from_type,
    "quantized": _quantized,
    "sparse": _odd("is sparse"),
    "nested": _odd("is nested"),
    "meta": _odd("is on the meta device and has no data"),
    "wrapper_subclass": _odd("is a tensor subclass"),
    "device_tensor": _odd("was saved from a device that torch copies through the CPU"),
    "tensor_class": _odd("was written by a torch that is too old"),
    "constant_tensor": _odd("is a constant of TorchScript"),
    "size": _size,
    "first": _first,
}
