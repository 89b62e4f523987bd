"""``servekit package``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from servekit.cli import output
from servekit.cli.proof import show_record
from servekit.domain.model import FORMATS, PRECISIONS, TASKS, ImageOptions, ModelSpec, TensorOptions, TextOptions
from servekit.domain.project import MAX_SIDE, MAX_TOP_K
from servekit.errors import ConfigError, raise_together
from servekit.system import project
from servekit.verbs.package import How, Packed, package

_PATH = click.Path(path_type=str)
_IMAGE = ("resize", "crop", "channels", "mean", "std")
_TENSOR = ("input_shape", "dtype")
_TEXT = ("task", "max_length", "normalize")


@click.command(
    "package",
    epilog="\b\nExamples:\n"
    "  servekit package                         every model of servekit.toml\n"
    "  servekit package resnet.pt --name resnet --model resnet.py:ResNet50 --handler image --labels names.txt\n"
    "  servekit package net.pt --name net --model net.py:Net --model-arg width=32 --handler tensor --input-shape 8\n"
    "  servekit package MiniLM/ --name minilm   a Hugging Face folder, with the text handler\n"
    "  servekit package base/ --adapter lora/ --name tuned --example question.txt\n"
    "  servekit package model.onnx --name net --handler tensor --example input.npy\n"
    "  servekit package --name rules --handler my_handler.py --extra-file tables/",
)
@click.argument("weights", required=False, type=_PATH)
@click.option("--name", help="The model's name in URLs.")
@click.option("--version", default="1.0", show_default=True)
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Default: told by the content of WEIGHTS.")
@click.option("--weights-key", metavar="KEY", help="Which part of a checkpoint holds the weights.")
@click.option(
    "--adapter", type=_PATH, metavar="DIR", help="A PEFT adapter, merged into the Hugging Face folder WEIGHTS."
)
@click.option("--convert/--no-convert", default=True, help="Store a state dict as safetensors where nothing is lost.")
@click.option("--model", metavar="FILE.py:Class", help="The class that a state dict belongs to.")
@click.option("--model-arg", "model_args", multiple=True, metavar="KEY=VALUE", help="For the class; JSON or text.")
@click.option("--handler", metavar="image|tensor|text|FILE.py", help="What turns requests into tensors and back.")
@click.option("--labels", type=_PATH, help="Class names: a line each, or JSON.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="auto", show_default=True)
@click.option("--keep-fp32", multiple=True, metavar="PATTERN", help="Modules that stay in fp32, such as 'head.*'.")
@click.option("--batch-size", type=click.IntRange(1, 4096), default=8, show_default=True)
@click.option("--max-batch-delay", type=click.IntRange(1, 600_000), default=5, show_default=True, metavar="MS")
@click.option("--extra-file", "extra_files", multiple=True, type=_PATH, help="A file or folder that travels along.")
@click.option(
    "--example", "examples", multiple=True, type=_PATH, help="An input, or a folder of them: the proof asks it."
)
@click.option("--resize", type=click.IntRange(1, MAX_SIDE), help="image: short side in pixels.  [default: 256]")
@click.option("--crop", type=click.IntRange(1, MAX_SIDE), help="image: centre square in pixels.  [default: 224]")
@click.option("--channels", type=click.Choice(["1", "3"]), help="image: 1 grey, 3 RGB.  [default: 3]")
@click.option("--mean", metavar="M,M,M", help="image: per channel, 0..1 scale.  [default: ImageNet's]")
@click.option("--std", metavar="S,S,S", help="image: per channel, 0..1 scale.  [default: ImageNet's]")
@click.option("--top-k", type=click.IntRange(1, MAX_TOP_K), help="image, text: answers a request.  [default: 5]")
@click.option("--input-shape", metavar="N,N,...", help="tensor: shape of one item, without the batch axis.")
@click.option("--dtype", help="tensor: torch's name of the input type.  [default: float32]")
@click.option("--task", type=click.Choice(TASKS), help="text: default as config.json says.")
@click.option("--max-length", type=click.IntRange(1), metavar="TOKENS", help="text: longer ones are cut, and say so.")
@click.option("--normalize/--no-normalize", default=None, help="text: embeddings of length 1.")
@click.option("--requirements", type=_PATH, metavar="FILE", help="Resolved into a lock with hashes, and an SBOM.")
@click.option("--python", metavar="X.Y", help="Target of the lock.  [default: this Python]")
@click.option("--platform", metavar="NAME", help="Target of the lock, as uv names it.  [default: this one]")
@click.option(
    "--vendor-wheels", is_flag=True, help="Fetch the lock's wheels into NAME.wheels/, for hosts without network."
)
@click.option(
    "--meta", multiple=True, metavar="KEY=VALUE", help="Where it comes from: git commit, data version, metrics."
)
@click.option("--card", type=_PATH, metavar="FILE.md", help="The model card.")
@click.option("--tolerance", metavar="P=E,...", help="Largest relative error, such as bf16=0.03,top1=0.99.")
@click.option("--no-verify", is_flag=True, help="Skip the proof; every later command says so.")
@click.option(
    "--gpu", metavar="INDEX|none", help="Prove on this GPU, or on the CPU.  [default: the first that computes]"
)
@click.option(
    "--sign", type=click.Path(path_type=Path), metavar="KEY", help="Sign archive and proof (servekit keygen)."
)
@click.option("--export-path", type=click.Path(path_type=Path), help="Folder of the archive.  [default: model_store]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(name: str | None, export_path: Path | None, as_json: bool, **said: Any) -> None:
    """Turn WEIGHTS, a model class and a handler into model_store/NAME.mar, proven before it is written.

    Without any argument, every model of servekit.toml is packaged.
    """
    root = Path.cwd()
    said["format"] = said.pop("format_")
    by_flags = name is not None or any(said[key] is not None for key in ("weights", "handler", "model"))
    specs = _from_flags(name, said) if by_flags else _from_project(root)
    how = How(
        verify=not said["no_verify"],
        gpu=said["gpu"],
        sign=said["sign"],
        vendor_wheels=said["vendor_wheels"],
        python=said["python"],
        platform=said["platform"],
    )
    packed = [package(spec, root, export_path or root / "model_store", output.progress, how) for spec in specs]
    if as_json:
        output.print_json([dataclasses.asdict(one) for one in packed])
        return
    for one in packed:
        click.echo(_sentence(one))
        if one.record:
            show_record(one.record)


def _sentence(packed: Packed) -> str:
    parameters = f", {packed.parameters:,} parameters" if packed.parameters is not None else ""
    verb = "replaced" if packed.replaced else "wrote"
    digest = f"\n  sha256 {packed.sha256}" if packed.sha256 else ""
    return f"{verb} {packed.path}  ({packed.size / 1e6:.1f} MB{parameters}){digest}"


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
    handler = said["handler"] or ("text" if said["weights"] and Path(said["weights"]).is_dir() else None)
    if not handler:
        problems.append("--handler is missing: image, tensor, text, or a .py file of yours.")
    options = {
        "image": _options(said, _IMAGE, problems),
        "tensor": _options(said, _TENSOR, problems),
        "text": _options(said, _TEXT, problems),
    }
    for kind, values in options.items():
        if values and handler not in (kind, None):
            problems.append(f"{', '.join(values)}: only for --handler {kind}.")
    if said["top_k"] is not None:
        if handler not in ("image", "text", None):
            problems.append("top_k: only for --handler image or text.")
        options.get(str(handler), {})["top_k"] = said["top_k"]
    arguments = _pairs("--model-arg", said["model_args"], problems)
    meta = _pairs("--meta", said["meta"], problems, identifiers=False)
    tolerance = _tolerance(said["tolerance"], problems)
    raise_together(ConfigError, problems, hint="See: servekit package --help")
    spec = ModelSpec(
        name=str(name),
        version=said["version"],
        weights=said["weights"],
        model=said["model"],
        model_args=arguments,
        handler=str(handler),
        labels=said["labels"],
        precision=said["precision"],
        batch_size=said["batch_size"],
        max_batch_delay_ms=said["max_batch_delay"],
        extra_files=tuple(said["extra_files"]),
        examples=tuple(said["examples"]),
        format=said["format"],
        convert=said["convert"],
        weights_key=said["weights_key"],
        adapter=said["adapter"],
        keep_fp32=tuple(said["keep_fp32"]),
        tolerance=tolerance,
        requirements=said["requirements"],
        meta=meta,
        card=said["card"],
        image=ImageOptions(**options["image"]),
        tensor=TensorOptions(**options["tensor"]),
        text=TextOptions(**options["text"]),
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


def _pairs(option: str, pairs: tuple[str, ...], problems: list[str], *, identifiers: bool = True) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or (identifiers and not key.isidentifier()):
            problems.append(f"{option} {pair!r}: write KEY=VALUE.")
            continue
        try:
            values[key] = json.loads(value) if identifiers else value
        except ValueError:
            values[key] = value  # a plain word is a text
    return values


def _tolerance(said: str | None, problems: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for part in said.split(",") if said else ():
        key, _, number = part.strip().partition("=")
        try:
            values[key] = float(number)
        except ValueError:
            problems.append(f"--tolerance {part!r}: write PRECISION=ERROR, such as bf16=0.03.")
    return values
