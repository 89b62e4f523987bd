"""``servekit build``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from servekit import assets
from servekit.cli import output
from servekit.system import docker
from servekit.verbs import build as verb


@click.command(
    "build",
    epilog="\b\nExamples:\n"
    "  servekit build                            from a public Python image and pip's own index\n"
    "  servekit build --torch-index URL          torch from another index, such as one of CPU wheels\n"
    "  servekit build --base my-python --wheelhouse wheels    without any network\n"
    "  servekit build --dry-run                  the exact command",
)
@click.option("--tag", default=docker.DEFAULT_IMAGE, show_default=True, help="Name of the image.")
@click.option("--base", metavar="IMAGE", help="An image with python3, venv and useradd. Default: in docker/Dockerfile.")
@click.option(
    "--wheelhouse", metavar="DIR", type=click.Path(path_type=Path), help="Install from these wheels, without an index."
)
@click.option("--torch", metavar="SPEC", help="Such as torch==2.13.0. Default: the version installed here.")
@click.option("--torch-index", metavar="URL", help="Another index for torch alone.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Install its locked requirements too.")
@click.option("--dry-run", is_flag=True, help="Show the command; build nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    tag: str,
    base: str | None,
    wheelhouse: Path | None,
    torch: str | None,
    torch_index: str | None,
    models: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build the Docker image that `up --runtime docker` runs; it holds no models.

    The result, the image's tag, goes to stdout; Docker's own output to stderr.
    """
    request = verb.BuildRequest(tag, base, wheelhouse, torch, torch_index, models)
    if dry_run:
        argv = verb.build_argv(request, assets.docker())
        output.print_json({"argv": argv}) if as_json else click.echo(shlex.join(argv))
        return
    built = verb.build(request, Path.cwd(), output.progress)
    output.print_json({"image": built}) if as_json else click.echo(built)
