"""A GPU that is named in the code, where the server assigns one to each worker."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from servekit.domain.traps.names import Names
from servekit.domain.traps.trap import Trap

CODE = "hard-coded-device"
_CUDA = re.compile(r"cuda(:\d+)?")
# Where the kind of device is meant, and not one of them.
_KINDS = ("torch.autocast", "torch.amp.autocast", "torch.amp.GradScaler", "torch.cuda.amp.autocast", "torch.Generator")
_KIND_ARGUMENTS = ("device_type", "backend", "providers")
_TO = (
    "to",
    "device",
    "load",
    "tensor",
    "zeros",
    "ones",
    "empty",
    "randn",
    "rand",
    "arange",
    "full",
    "as_tensor",
    "pipeline",
)
_DEVICE_ARGUMENTS = ("device", "map_location", "device_map")
_HINT = (
    'Use the GPU that the server assigned: gpu_id = context.system_properties["gpu_id"], then '
    'torch.device("cuda", gpu_id), or the CPU where it is None.'
)


def find(tree: ast.AST, names: Names) -> Iterator[Trap]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _call(node, names)
        elif isinstance(node, ast.Assign):
            yield from _assigned(node, names)
        elif isinstance(node, ast.AnnAssign) and node.value is not None and _named(node.target):
            yield from _value(node.value)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _defaults(node)


def _call(node: ast.Call, names: Names) -> Iterator[Trap]:
    full = names.called(node)
    if full in _KINDS or (full == "torch.device" and len(node.args) == 2 and not _is_int(node.args[1])):
        return  # the kind of a device; and torch.device("cuda", gpu_id), which is how to write it
    method = node.func.attr if isinstance(node.func, ast.Attribute) else full.rpartition(".")[2]
    if method == "cuda" and isinstance(node.func, ast.Attribute) and full != "torch.cuda":
        if not node.args or _is_int(node.args[0]):
            yield _trap(node, ".cuda() goes to the first GPU")
        return
    if full == "torch.cuda.set_device" and node.args and (_is_int(node.args[0]) or _is_cuda(node.args[0])):
        yield _trap(node, "torch.cuda.set_device names one GPU")
        return
    if method == "pipeline":
        for keyword in node.keywords:
            if keyword.arg == "device" and _is_int(keyword.value) and _int(keyword.value) >= 0:
                yield _trap(node, f"pipeline(device={_int(keyword.value)}) names one GPU")
    if method in _TO and node.args:
        for argument in node.args[:2]:
            yield from _value(argument)
    for keyword in node.keywords:
        if keyword.arg in _DEVICE_ARGUMENTS:
            yield from _value(keyword.value)
    if full in ("os.putenv", "os.environ.setdefault", "os.environ.update") and _mentions_mask(node):
        yield _trap(node, "CUDA_VISIBLE_DEVICES is set by the handler, after the server has counted the GPUs")


def _assigned(node: ast.Assign, names: Names) -> Iterator[Trap]:
    target = node.targets[0]
    if isinstance(target, ast.Subscript) and names.full(target.value) == "os.environ" and _mentions_mask(target):
        yield _trap(node, "CUDA_VISIBLE_DEVICES is set by the handler, after the server has counted the GPUs")
    elif _named(target):
        yield from _value(node.value)


def _defaults(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Trap]:
    arguments = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    pairs = [*zip(arguments, node.args.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
    for argument, default in pairs:
        if "device" in argument.arg and argument.arg not in _KIND_ARGUMENTS and _is_cuda(default):
            yield from _value(default)


def _value(node: ast.expr) -> Iterator[Trap]:
    """A device as a value: the text itself, or one side of a choice that knows no gpu_id."""
    if isinstance(node, ast.IfExp):
        yield from _value(node.body)
        yield from _value(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _value(value)
    elif _is_cuda(node):
        assert isinstance(node, ast.Constant)
        where = "the first GPU" if node.value == "cuda" else "one GPU"
        yield _trap(node, f"{node.value!r} is {where}")


def _trap(node: ast.expr | ast.stmt, what: str) -> Trap:
    return Trap(CODE, node.lineno, f"{what}, whichever GPU the server assigned to this worker.", _HINT)


def _named(target: ast.AST) -> bool:
    """Whether a name or attribute is one that devices are kept under."""
    name = target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""
    return "device" in name.lower() and "type" not in name.lower()


def _is_cuda(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_CUDA.fullmatch(node.value))


def _is_int(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is int


def _int(node: ast.AST) -> int:
    if isinstance(node, ast.UnaryOp):
        return -_int(node.operand)
    return int(node.value) if isinstance(node, ast.Constant) else 0  # type: ignore[arg-type]


def _mentions_mask(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Constant) and n.value == "CUDA_VISIBLE_DEVICES" for n in ast.walk(node)) or any(
        isinstance(n, ast.keyword) and n.arg == "CUDA_VISIBLE_DEVICES" for n in ast.walk(node)
    )
