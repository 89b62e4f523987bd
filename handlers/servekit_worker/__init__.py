"""The runtime of our handlers, copied into every archive. Needs torch, NumPy, Pillow and nothing else.

Write a handler of your own with ``from servekit_worker.serving import ModelHandler``.
"""
