"""What names mean in a file: imports followed to the module they come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator


class Names:
    """The imports of a whole file, by the name each is known under."""

    def __init__(self, tree: ast.AST) -> None:
        self._known: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._known[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._known[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def full(self, node: ast.AST) -> str | None:
        """The dotted name of a name or attribute, as imported: ``F.silu`` -> ``torch.nn.functional.silu``.

        A call in the middle is written ``()``: ``Path(x).read_text`` -> ``pathlib.Path().read_text``.
        """
        if isinstance(node, ast.Name):
            return self._known.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            inner = self.full(node.value)
            return None if inner is None else f"{inner}.{node.attr}"
        if isinstance(node, ast.Call):
            inner = self.full(node.func)
            return None if inner is None else f"{inner}()"
        return None

    def called(self, node: ast.AST) -> str:
        """The full name of what a call calls; empty for anything else."""
        return (self.full(node.func) or "") if isinstance(node, ast.Call) else ""

    def imported(self, node: ast.AST) -> bool:
        """Whether a dotted name begins with something that the file imports."""
        while isinstance(node, (ast.Attribute, ast.Call)):
            node = node.value if isinstance(node, ast.Attribute) else node.func
        return isinstance(node, ast.Name) and node.id in self._known


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
