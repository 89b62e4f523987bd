"""``servekit down``."""

from __future__ import annotations

from pathlib import Path

import click

from servekit.verbs.down import down


@click.command("down", epilog="\b\nExamples:\n  servekit down\n  servekit down --name cpu")
@click.option("--name", help="Default: the only deployment of this project.")
def command(name: str | None) -> None:
    """Stop a deployment and remove what it left."""
    stopped = down(Path.cwd(), name)
    click.echo(f"{stopped} is down.")
