"""servekit: package a PyTorch model, serve it on chosen GPUs, prove what it delivers.

Kept to the version and one function that is imported when it is first used, so that ``servekit --help`` imports
neither torch nor Locust.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servekit.api import package as package

__version__ = "0.1.0"
__all__ = ["__version__", "package"]


def __getattr__(name: str) -> Any:
    if name == "package":
        from servekit.api import package

        return package
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
