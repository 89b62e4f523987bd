"""``servekit package``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from servekit.cli import output
from servekit.domain.model import PRECISIONS, ImageOptions, ModelSpec, TensorOptions
from servekit.domain.project import MAX_SIDE, MAX_TOP_K
from servekit.errors import ConfigError, raise_together
from servekit.system import project
from servekit.verbs.package import Packed, package

_PATH = click.Path(path_type=str)


@click.command(
    "package",
    epilog="\b\nExamples:\n"
    "  servekit package                         every model of servekit.toml\n"
    "  servekit package resnet.pt --name resnet --model resnet.py:ResNet50 --handler image --labels names.txt\n"
    "  servekit package net.pt --name net --model net.py:Net --model-arg width=32 --handler tensor --input-shape 8\n"
    "  servekit package --name rules --handler my_handler.py --extra-file tables/",
)
@click.argument("weights", required=False, type=_PATH)
@click.option("--name", help="The model's name in URLs.")
@click.option("--version", default="1.0", show_default=True)
@click.option("--model", metavar="FILE.py:Class", help="The class that a state dict belongs to.")
@click.option("--model-arg", "model_args", multiple=True, metavar="KEY=VALUE", help="For the class; JSON or text.")
@click.option("--handler", metavar="image|tensor|FILE.py", help="What turns requests into tensors and back.")
@click.option("--labels", type=_PATH, help="Class names: a line each, or JSON.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="auto", show_default=True)
@click.option("--batch-size", type=click.IntRange(1, 4096), default=8, show_default=True)
@click.option("--max-batch-delay", type=click.IntRange(1, 600_000), default=5, show_default=True, metavar="MS")
@click.option("--extra-file", "extra_files", multiple=True, type=_PATH, help="A file or folder that travels along.")
@click.option("--example", type=_PATH, help="An input: warms up, and proves that the server answers.")
@click.option("--resize", type=click.IntRange(1, MAX_SIDE), help="image: short side in pixels.  [default: 256]")
@click.option("--crop", type=click.IntRange(1, MAX_SIDE), help="image: centre square in pixels.  [default: 224]")
@click.option("--channels", type=click.Choice(["1", "3"]), help="image: 1 grey, 3 RGB.  [default: 3]")
@click.option("--mean", metavar="M,M,M", help="image: per channel, 0..1 scale.  [default: ImageNet's]")
@click.option("--std", metavar="S,S,S", help="image: per channel, 0..1 scale.  [default: ImageNet's]")
@click.option("--top-k", type=click.IntRange(1, MAX_TOP_K), help="image: answers a request.  [default: 5]")
@click.option("--input-shape", metavar="N,N,...", help="tensor: shape of one item, without the batch axis.")
@click.option("--dtype", help="tensor: torch's name of the input type.  [default: float32]")
@click.option("--export-path", type=click.Path(path_type=Path), help="Folder of the archive.  [default: model_store]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(name: str | None, export_path: Path | None, as_json: bool, **said: Any) -> None:
    """Turn WEIGHTS, a model class and a handler into model_store/NAME.mar.

    Without any argument, every model of servekit.toml is packaged.
    """
    root = Path.cwd()
    by_flags = name is not None or any(said[key] is not None for key in ("weights", "handler", "model"))
    specs = _from_flags(name, said) if by_flags else _from_project(root)
    packed = [package(spec, root, export_path or root / "model_store", output.progress) for spec in specs]
    if as_json:
        output.print_json([dataclasses.asdict(one) for one in packed])
        return
    for one in packed:
        click.echo(_sentence(one))


def _sentence(packed: Packed) -> str:
    parameters = f", {packed.parameters:,} parameters" if packed.parameters is not None else ""
    verb = "replaced" if packed.replaced else "wrote"
    return f"{verb} {packed.path}  ({packed.size / 1e6:.1f} MB{parameters})"


def _from_project(root: Path) -> tuple[ModelSpec, ...]:
    found = project.load(root)
    if found is None:
        raise ConfigError(
            f"Nothing to package: no WEIGHTS, no --name, and no servekit.toml in {root}.",
            hint="Name a model on the command line (servekit package --help), or start with: servekit init",
        )
    if not found.models:
        raise ConfigError("servekit.toml names no model.", hint="Add a [[models]] table; see: servekit init --print")
    return found.models


def _from_flags(name: str | None, said: dict[str, Any]) -> tuple[ModelSpec, ...]:
    # An unset variable in a script: what was meant to be said must not count as not said.
    problems = [f"--{key.replace('_', '-')} is empty." for key, value in said.items() if value == ""]
    if not name:
        problems.append("--name is missing: what shall the model be called?")
    if not said["handler"]:
        problems.append("--handler is missing: image, tensor, or a .py file of yours.")
    image = _options(said, ("resize", "crop", "channels", "mean", "std", "top_k"), problems)
    tensor = _options(said, ("input_shape", "dtype"), problems)
    if image and said["handler"] not in ("image", None):
        problems.append(f"{', '.join(image)}: only for --handler image.")
    if tensor and said["handler"] not in ("tensor", None):
        problems.append(f"{', '.join(tensor)}: only for --handler tensor.")
    arguments = _model_args(said["model_args"], problems)
    raise_together(ConfigError, problems, hint="See: servekit package --help")
    spec = ModelSpec(
        name=str(name),
        version=said["version"],
        weights=said["weights"],
        model=said["model"],
        model_args=arguments,
        handler=said["handler"],
        labels=said["labels"],
        precision=said["precision"],
        batch_size=said["batch_size"],
        max_batch_delay_ms=said["max_batch_delay"],
        extra_files=tuple(said["extra_files"]),
        example=said["example"],
        image=ImageOptions(**image),
        tensor=TensorOptions(**tensor),
    )
    return (spec,)


def _options(said: dict[str, Any], keys: tuple[str, ...], problems: list[str]) -> dict[str, Any]:
    """The options that were given, lists of numbers taken apart."""
    values: dict[str, Any] = {}
    for key in keys:
        value = said[key]
        if value is None:
            continue
        try:
            if key in ("mean", "std"):
                value = tuple(float(part) for part in value.split(","))
            elif key == "input_shape":
                value = tuple(int(part) for part in value.split(",") if part.strip())
            elif key == "channels":
                value = int(value)
        except ValueError:
            problems.append(f"--{key.replace('_', '-')} {value!r}: write numbers with commas between.")
            continue
        values[key] = value
    return values


def _model_args(pairs: tuple[str, ...], problems: list[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            problems.append(f"--model-arg {pair!r}: write KEY=VALUE.")
            continue
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value  # a plain word is a text
    return arguments
