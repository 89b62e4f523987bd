"""Activations spelled out: several kernels, and several roundings, where torch has one."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from servekit.domain.traps.names import Names
from servekit.domain.traps.trap import Trap

CODE = "hand-written-activation"
_SIGMOID = ("torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit")
_TANH = ("torch.tanh", "torch.nn.functional.tanh")
_SOFTPLUS = ("torch.nn.functional.softplus",)
_RELU6 = ("torch.nn.functional.relu6",)
_EXP, _ERF = ("torch.exp",), ("torch.erf", "torch.special.erf")
_LOG = ("torch.log",)
_SOFTMAX = ("torch.softmax", "torch.nn.functional.softmax")


def find(tree: ast.AST, names: Names) -> Iterator[Trap]:
    told: set[ast.AST] = set()
    for node in ast.walk(tree):  # outer expressions come before what is inside them
        if node in told or not isinstance(node, (ast.BinOp, ast.Call)):
            continue
        if name := _activation(node, names):
            told |= set(ast.walk(node))
            yield Trap(
                CODE,
                node.lineno,
                f"this is {name}, written out: torch runs it as several kernels, each with its own rounding in half "
                "precision.",
                f"Call torch.nn.functional.{name}.",
            )


def _activation(node: ast.BinOp | ast.Call, names: Names) -> str | None:
    if isinstance(node, ast.Call):
        return _called(node, names)
    if isinstance(node.op, ast.Mult):
        return _product(node, names)
    if isinstance(node.op, ast.Div):
        return _quotient(node, names)
    return None


def _called(node: ast.Call, names: Names) -> str | None:
    full = names.called(node)
    if full in ("torch.maximum", "torch.max") and len(node.args) == 2 and any(map(_is_zero, node.args)):
        return "relu"
    if full in ("torch.clamp", "torch.clip") or (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in ("clamp", "clip", "clamp_min")
        and not full.startswith("numpy")
    ):
        return "relu" if _clamps_at_zero(node, names) else None
    if full in _LOG and len(node.args) == 1:
        inner = node.args[0]
        if names.called(inner) in _SOFTMAX or _is_method(inner, "softmax"):
            return "log_softmax"
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
            sides = (inner.left, inner.right)
            exponential = any(_of(side, _EXP, "exp", names) is not None for side in sides)
            return "softplus" if exponential and any(map(_is_one, sides)) else None
    return None


def _product(node: ast.BinOp, names: Names) -> str | None:
    factors = _factors(node)
    for index, factor in enumerate(factors):
        others = [f for i, f in enumerate(factors) if i != index]
        shown = {ast.dump(other) for other in others}
        inner = _of(factor, _SIGMOID, "sigmoid", names)
        if inner is not None and ast.dump(inner) in shown:
            return "silu"
        inner = _of(factor, _TANH, "tanh", names)
        soft = _of(inner, _SOFTPLUS, "softplus", names) if inner is not None else None
        if soft is not None and ast.dump(soft) in shown:
            return "mish"
        if _is_one_plus(factor, names, others):
            return "gelu"
    return None


def _is_one_plus(factor: ast.expr, names: Names, others: list[ast.expr]) -> bool:
    """0.5 * x * (1 + erf(x / sqrt(2))), or with tanh of x + 0.044715 x**3."""
    if not (isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.Add)):
        return False
    sides = (factor.left, factor.right)
    if not any(map(_is_one, sides)) or not any(_is_half(other) for other in others):
        return False
    for side in sides:
        inner = _of(side, (*_ERF, *_TANH), "erf", names)
        if inner is None:
            inner = _of(side, _TANH, "tanh", names)
        if inner is not None:
            inside = {ast.dump(n) for n in ast.walk(inner)}
            return any(ast.dump(other) in inside for other in others if not _is_half(other))
    return False


def _quotient(node: ast.BinOp, names: Names) -> str | None:
    if _is_one(node.left) and isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Add):
        sides = (node.right.left, node.right.right)
        exps = [_of(side, _EXP, "exp", names) for side in sides]
        negative = [e for e in exps if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub)]
        if any(map(_is_one, sides)) and negative:
            return "sigmoid"
    numerator = _of(node.left, _EXP, "exp", names)
    if numerator is not None and _sums_exp_of(node.right, numerator, names):
        return "softmax"
    if _is_number(node.right, 6.0) and isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult):
        for a, b in ((node.left.left, node.left.right), (node.left.right, node.left.left)):
            inner = _of(b, _RELU6, "relu6", names)
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
                sides = (inner.left, inner.right)
                if any(_is_number(s, 3.0) for s in sides) and any(ast.dump(s) == ast.dump(a) for s in sides):
                    return "hardswish"
    # x / (1 + exp(-x)) is silu with the division written out.
    if isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Add) and not _is_one(node.left):
        for side in (node.right.left, node.right.right):
            inner = _of(side, _EXP, "exp", names)
            minus = inner.operand if isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.USub) else None
            if minus is not None and ast.dump(minus) == ast.dump(node.left):
                return "silu"
    return None


def _sums_exp_of(node: ast.expr, of: ast.expr, names: Names) -> bool:
    """torch.sum(torch.exp(x), ...) or torch.exp(x).sum(...), of the same x."""
    if not isinstance(node, ast.Call):
        return False
    inner: ast.expr | None = None
    if names.called(node) == "torch.sum" and node.args:
        inner = node.args[0]
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "sum":
        inner = node.func.value
    summed = _of(inner, _EXP, "exp", names) if inner is not None else None
    return summed is not None and ast.dump(summed) == ast.dump(of)


def _of(node: ast.expr | None, functions: tuple[str, ...], method: str, names: Names) -> ast.expr | None:
    """The argument of ``torch.f(x)``, or x of ``x.f()``."""
    if not isinstance(node, ast.Call):
        return None
    if names.called(node) in functions and node.args:
        return node.args[0]
    if _is_method(node, method) and not node.args and isinstance(node.func, ast.Attribute):
        return None if names.imported(node.func.value) else node.func.value
    return None


def _is_method(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _clamps_at_zero(node: ast.Call, names: Names) -> bool:
    """Below at zero, and not above."""
    bounds = {keyword.arg: keyword.value for keyword in node.keywords}
    rest = node.args[1:] if names.called(node).startswith("torch.") else node.args
    for name, value in zip(("min", "max"), rest, strict=False):
        bounds.setdefault(name, value)
    top = bounds.get("max")
    open_top = top is None or (isinstance(top, ast.Constant) and top.value is None)
    return "min" in bounds and _is_zero(bounds["min"]) and open_top


def _is_zero(node: ast.expr) -> bool:
    return _is_number(node, 0.0)


def _is_one(node: ast.expr) -> bool:
    return _is_number(node, 1.0)


def _is_half(node: ast.expr) -> bool:
    return _is_number(node, 0.5)


def _is_number(node: ast.expr, value: float) -> bool:
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        # torch.tensor(0.0), torch.zeros(1): the same number in a tensor
        text = ast.unparse(node.func)
        if text.endswith(("tensor", "as_tensor")):
            return _is_number(node.args[0], value)
    number = node.value if isinstance(node, ast.Constant) else None
    return type(number) in (int, float) and math.isclose(float(number), value)  # type: ignore[arg-type]
