"""A handler that reads the first request of its batch and none of the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from servekit.domain.traps.names import Names, functions
from servekit.domain.traps.trap import Trap

CODE = "first-item-only"
_METHODS = ("preprocess", "handle", "inference", "_handle", "predict")
_HINT = "Loop over the whole list and answer each item, or package it with batch_size = 1."


def find(tree: ast.AST, names: Names) -> Iterator[Trap]:
    for function in functions(tree):
        if function.name not in _METHODS:
            continue
        parameters = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
        if parameters and (line := _first_only(function, parameters[0])):
            yield Trap(
                CODE,
                line,
                f"{function.name} reads only the first item of {parameters[0]}: TorchServe hands over a list of up to "
                "batch_size requests and wants as many answers.",
                _HINT,
            )


def _first_only(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> int | None:
    """The line of the first use of item 0, when the list is used in no other way."""
    first: int | None = None
    inside: set[ast.AST] = set()
    for node in ast.walk(function):
        if (line := _takes_first(node, name)) is not None:
            first = min(first or line, line)
            inside |= set(ast.walk(node))
        elif _asks_whether_empty(node, name):
            inside |= set(ast.walk(node))
    if first is None:
        return None
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and node not in inside:
            return None  # looped over, counted, handed on: the other items may be seen there
    return first


def _takes_first(node: ast.AST, name: str) -> int | None:
    if isinstance(node, ast.Subscript) and _is(node.value, name):
        index = node.slice
        if isinstance(index, ast.Constant) and index.value == 0 and not isinstance(index.value, bool):
            return node.lineno
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "pop" and _is(function.value, name):
            return node.lineno
        if isinstance(function, ast.Name) and function.id == "next" and node.args:
            inner = node.args[0]
            if isinstance(inner, ast.Call) and inner.args and _is(inner.args[0], name):
                return node.lineno
    if isinstance(node, ast.Assign) and _is(node.value, name) and isinstance(node.targets[0], (ast.Tuple, ast.List)):
        parts = node.targets[0].elts
        rest = parts[1:] if len(parts) > 1 else []
        if len(parts) == 1 or all(isinstance(p, ast.Starred) and _is(p.value, "_") for p in rest):
            return node.lineno
    return None


def _asks_whether_empty(node: ast.AST, name: str) -> bool:
    """`if not data`, `if data is None`: a look at the list that sees no item."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and _is(node.operand, name):
        return True
    if isinstance(node, ast.If) and _is(node.test, name):
        return False  # the body is looked at by itself; the test alone is handled below
    return isinstance(node, ast.Compare) and _is(node.left, name) and _is_none(node.comparators[0])


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
