"""One module a file format: from the archive's weights to a callable on the worker's device.

A ``state_dict``, ``safetensors`` or ``torchscript`` becomes a torch.nn.Module on the CPU, which the handler
moves. An ``exported``, ``aoti`` or ``onnx`` file becomes an engine: a callable that is on its device already
and says with ``own`` which precision is built into it. Engines need no more than torch, except ``onnx``,
which imports onnxruntime when a model asks for it.
"""
