"""What a handler does when it is merely imported: by each worker, before it may say what is wrong.

Two traps: access to the network or to files, and work that takes long. A call that is both is told once, as the
access that it is.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from servekit.domain.traps.names import Names
from servekit.domain.traps.trap import Trap

ACCESS, HEAVY = "access-at-import", "heavy-work-at-import"
_NETWORK = (
    *("requests.", "urllib.request.", "urllib3.", "http.client.", "httpx.", "aiohttp.", "socket.", "boto3.", "ftplib."),
    *("huggingface_hub.", "torch.hub.", "nltk.download", "wget.download", "gdown.", "paramiko.", "smtplib."),
)
_FILES = (
    *("open", "io.open", "os.listdir", "os.scandir", "os.walk", "os.makedirs", "os.mkdir", "os.remove", "glob.glob"),
    *("numpy.load", "numpy.loadtxt", "numpy.fromfile", "torch.load", "torch.jit.load", "torch.save", "pickle.load"),
    *("json.load", "yaml.safe_load", "pandas.read_csv", "pandas.read_parquet", "PIL.Image.open", "cv2.imread"),
    *(
        "shutil.copy",
        "shutil.copyfile",
        "shutil.rmtree",
        "sqlite3.connect",
        "safetensors.torch.load_file",
        "joblib.load",
    ),
)
_FILE_METHODS = (".read_text", ".read_bytes", ".write_text", ".write_bytes", ".open", ".iterdir", ".glob", ".mkdir")
_PROCESSES = ("subprocess.", "os.system", "os.popen")
_HEAVY = ("torch.compile", "time.sleep", "torch.jit.script", "torch.jit.trace", "torch.export.export")
_MODELS = ("torchvision.models.", "timm.create_model", "transformers.pipeline", "sentence_transformers.")
_ALLOCATORS = ("zeros", "ones", "empty", "randn", "rand", "full", "arange", "linspace")
_HEAVY_METHODS = ("cuda", "to", "fit", "train_model", "compile")
_MANY = 10_000_000
_LONG = 100_000
_WHEN = "runs when the handler is imported"
_TO_INITIALIZE = "Do it in initialize(), where its error reaches the log and the server can wait for it."


def find(tree: ast.Module, names: Names) -> Iterator[Trap]:
    for node in _at_import(tree.body, names):
        if isinstance(node, ast.Call):
            yield from _call(node, names)
        elif isinstance(node, ast.For) and _is_long(node.iter):
            yield Trap(
                HEAVY, node.lineno, "a long loop runs when the handler is imported, in each worker.", _TO_INITIALIZE
            )


def _call(node: ast.Call, names: Names) -> Iterator[Trap]:
    full = names.called(node)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if full.startswith(_NETWORK) or (method == "from_pretrained" and _is_remote(node)):
        yield Trap(
            ACCESS, node.lineno, f"{_short(full)} uses the network when the handler is imported.", _TO_INITIALIZE
        )
    elif (
        full in _FILES or full.startswith(_PROCESSES) or (full.startswith("pathlib.") and full.endswith(_FILE_METHODS))
    ):
        what = "starts a process" if full.startswith(_PROCESSES) else "touches files"
        hint = _TO_INITIALIZE
        if what == "touches files":
            hint += ' Files of the archive lie in context.system_properties["model_dir"].'
        yield Trap(ACCESS, node.lineno, f"{_short(full)} {what} when the handler is imported.", hint)
    elif _is_heavy(node, full, method, names):
        yield Trap(
            HEAVY,
            node.lineno,
            f"{_short(full) or method} runs when the handler is imported, in each worker.",
            _TO_INITIALIZE,
        )


def _is_heavy(node: ast.Call, full: str, method: str, names: Names) -> bool:
    if full in _HEAVY or full.startswith(_MODELS) or method == "from_pretrained":
        return True
    if full.startswith("torch.cuda.") and full.rpartition(".")[2] in ("init", "synchronize", "set_device"):
        return True
    if full.startswith(("torch.", "numpy.")) and full.count(".") == 1 and full.rpartition(".")[2] in _ALLOCATORS:
        return _size(node) >= _MANY
    if method not in _HEAVY_METHODS or full.startswith("re."):
        return False
    return not full.startswith(("torch.device", "torch.dtype")) and (method != "to" or bool(node.args or node.keywords))


def _at_import(body: list[ast.stmt], names: Names) -> Iterator[ast.AST]:
    """Every node that is evaluated when the module is imported: not the inside of functions."""
    waiting: list[ast.AST] = list(reversed(body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.Lambda):
            waiting += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.If) and _is_not_imported(node.test, names):
            waiting += reversed(node.orelse)
        else:
            yield node
            waiting += reversed(list(ast.iter_child_nodes(node)))


def _is_not_imported(test: ast.expr, names: Names) -> bool:
    """`if __name__ == "__main__"` and `if TYPE_CHECKING`: what an import skips."""
    if isinstance(test, ast.Compare):
        return isinstance(test.left, ast.Name) and test.left.id == "__name__"
    return names.full(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _is_remote(node: ast.Call) -> bool:
    """A name as a hub has them, `org/name` or `name`, and not a path."""
    if any(k.arg == "local_files_only" and isinstance(k.value, ast.Constant) and k.value.value for k in node.keywords):
        return False
    first = node.args[0] if node.args else None
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return False
    return not first.value.startswith((".", "/", "~")) and first.value.count("/") <= 1


def _is_long(iterator: ast.expr) -> bool:
    if not (isinstance(iterator, ast.Call) and isinstance(iterator.func, ast.Name) and iterator.func.id == "range"):
        return False
    numbers = [_number(argument) for argument in iterator.args]
    return any(number is not None and number >= _LONG for number in numbers)


def _size(node: ast.Call) -> float:
    """The product of the literal sizes of an allocation."""
    first = node.args[0] if node.args else None
    sizes = list(first.elts) if isinstance(first, (ast.Tuple, ast.List)) else list(node.args)
    numbers = [number for number in map(_number, sizes) if number is not None]
    return math.prod(numbers) if numbers else 0


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Pow)):
        left, right = _number(node.left), _number(node.right)
        if left is None or right is None or abs(right) > 64 or abs(left) > 1e12:
            return None
        return left * right if isinstance(node.op, ast.Mult) else left**right
    return None


def _short(full: str) -> str:
    return full.replace("()", "(...)")
