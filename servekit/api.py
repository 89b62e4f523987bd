"""``from servekit import package``: the command as a typed function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from servekit.domain.model import ImageOptions, ModelSpec, TensorOptions, TextOptions
from servekit.verbs.package import How, Packed
from servekit.verbs.package import package as _package

_Path = str | os.PathLike[str]


def package(
    weights: _Path | None = None,
    *,
    name: str,
    handler: _Path = "tensor",
    version: str = "1.0",
    model: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    labels: _Path | None = None,
    precision: str = "auto",
    keep_fp32: Sequence[str] = (),
    batch_size: int = 8,
    max_batch_delay_ms: int = 5,
    extra_files: Sequence[_Path] = (),
    examples: Sequence[_Path] = (),
    format: str | None = None,  # noqa: A002 - the name of the option
    convert: bool = True,
    weights_key: str | None = None,
    adapter: _Path | None = None,
    tolerance: Mapping[str, float] | None = None,
    requirements: _Path | None = None,
    meta: Mapping[str, str] | None = None,
    card: _Path | None = None,
    image: ImageOptions | None = None,
    tensor: TensorOptions | None = None,
    text: TextOptions | None = None,
    verify: bool = True,
    gpu: str | None = None,
    sign: _Path | None = None,
    vendor_wheels: bool = False,
    python: str | None = None,
    platform: str | None = None,
    root: _Path = ".",
    export_path: _Path = "model_store",
    progress: Callable[[str], None] = lambda _: None,
) -> Packed:
    """Make ``export_path/NAME.mar`` and its proof; what was made, and the record of the proof.

    Paths are relative to ``root``; the options are those of ``servekit package`` (see its ``--help``).
    ``progress`` is called with one line a step. Raises servekit.errors.ServekitError: ConfigError for options
    that contradict each other, ModelError for what cannot be packaged or does not pass, StorageError for the disk.
    """
    spec = ModelSpec(
        name=name,
        version=version,
        weights=_text(weights),
        model=model,
        model_args=dict(model_args or {}),
        handler=str(handler),
        labels=_text(labels),
        precision=precision,
        batch_size=batch_size,
        max_batch_delay_ms=max_batch_delay_ms,
        extra_files=tuple(map(str, extra_files)),
        examples=tuple(map(str, examples)),
        format=format,
        convert=convert,
        weights_key=weights_key,
        adapter=_text(adapter),
        keep_fp32=tuple(keep_fp32),
        tolerance=dict(tolerance or {}),
        requirements=_text(requirements),
        meta=dict(meta or {}),
        card=_text(card),
        image=image or ImageOptions(),
        tensor=tensor or TensorOptions(),
        text=text or TextOptions(),
    )
    how = How(verify, gpu, Path(sign) if sign else None, vendor_wheels, python, platform)
    folder = Path(root)
    return _package(spec, folder, folder / export_path, progress, how)


def _text(path: _Path | None) -> str | None:
    return None if path is None else str(path)
