"""``servekit init``."""

from __future__ import annotations

from pathlib import Path

import click

from servekit.verbs import init as verb


@click.command("init", epilog="\b\nExamples:\n  servekit init\n  servekit init --print")
@click.option("--print", "only_print", is_flag=True, help="Print the template; write nothing.")
def command(only_print: bool) -> None:
    """Write a commented servekit.toml."""
    if only_print:
        click.echo(verb.template(), nl=False)
        return
    for path in verb.init(Path.cwd()):
        click.echo(f"wrote {path.name}")
    click.echo("Edit servekit.toml, then: servekit package && servekit up", err=True)
