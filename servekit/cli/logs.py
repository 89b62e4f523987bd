"""``servekit logs``."""

from __future__ import annotations

from pathlib import Path

import click

from servekit.verbs.logs import logs


@click.command(
    "logs", epilog="\b\nExamples:\n  servekit logs\n  servekit logs -f --model digits\n  servekit logs -n 500"
)
@click.option("--name", help="Default: the only deployment of this project.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the deployment ends or Ctrl-C.")
@click.option("-n", "--lines", default=100, show_default=True, type=click.IntRange(0), help="Last lines.")
@click.option("--model", help="Only lines of this model's workers.")
def command(name: str | None, follow: bool, lines: int, model: str | None) -> None:
    """Print or follow a deployment's logs."""
    for line in logs(Path.cwd(), name, lines=lines, follow=follow, model=model):
        click.echo(line)
