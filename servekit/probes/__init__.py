"""Scripts run by ``python -m`` in a child process: the only place that imports torch. One JSON line out."""
