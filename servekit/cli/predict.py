"""``servekit predict``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from servekit.cli import output
from servekit.verbs.predict import predict


@click.command(
    "predict",
    epilog="\b\nExamples:\n"
    "  servekit predict digits seven.png\n"
    "  servekit predict mymodel input.json --name cpu\n"
    "  servekit predict mymodel body.bin --content-type application/octet-stream",
)
@click.argument("model")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Default: the only deployment of this project.")
@click.option("--content-type", help="Default: by the file's name.")
def command(model: str, file: Path, name: str | None, content_type: str | None) -> None:
    """Send FILE to MODEL and print the answer (the token is added)."""
    if content_type is not None and not re.fullmatch(r"[\w.+-]+/[\w.+-]+(\s*;[ -~]*)?", content_type):
        raise click.BadParameter(f"{content_type!r} is no media type, like image/png.", param_hint="--content-type")
    body = predict(Path.cwd(), model, file, name=name, content_type=content_type, progress=output.progress)
    sys.stdout.buffer.write(body)
    if sys.stdout.isatty() and not body.endswith(b"\n"):
        click.echo()
