"""servekit: package a PyTorch model, serve it on chosen GPUs, prove what it delivers.

Kept to the version alone, so that ``servekit --help`` imports neither torch nor Locust.
"""

__version__ = "0.1.0"
