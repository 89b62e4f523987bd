"""Put the elements of a strided view in order: what ``tensor.contiguous()`` does, on bytes."""

from __future__ import annotations

from collections.abc import Sequence

from servekit.errors import ModelError
from servekit.system.archives.zipstream import Piece


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie row by row without gaps. Strides (in elements) of dimensions of 1 do not count."""
    expected = 1
    for count, step in zip(reversed(shape), reversed(strides), strict=True):
        if count != 1 and step != expected:
            return False
        expected *= count
    return True


def gather(span: Piece, shape: Sequence[int], strides: Sequence[int], item: int) -> bytes:
    """The view's elements row by row. ``span`` is from its first byte to its last; ``item`` bytes an element.

    ModelError when the file has become shorter.
    """
    import numpy as np  # takes a tenth of a second; most files need none of it

    with span.path.open("rb") as file:
        file.seek(span.offset)
        data = file.read(span.size)
    if len(data) != span.size:
        raise ModelError(f"{span.path} changed while it was read.", hint="Package again when it is finished.")
    # numpy has 64 dimensions as torch does only since version 2; those of one element need none.
    axes = [(count, step * item) for count, step in zip(shape, strides, strict=True) if count != 1]
    if len(axes) > 32:
        raise ModelError(f"{span.path} holds a view of {len(axes)} dimensions.", hint="Save it contiguous.")
    base = np.frombuffer(data, dtype=np.dtype(f"V{item}"))
    view = np.lib.stride_tricks.as_strided(base, [n for n, _ in axes], [step for _, step in axes], writeable=False)
    return view.tobytes()
