"""``servekit status``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from servekit.cli import output
from servekit.cli.up import show_workers
from servekit.verbs.status import status


@click.command("status", epilog="\b\nExamples:\n  servekit status\n  servekit status --name default --json")
@click.option("--name", help="Only this deployment. Default: all of this project.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(name: str | None, as_json: bool) -> None:
    """Show deployments, workers, GPUs and precision."""
    found = status(Path.cwd(), name)
    if as_json:
        output.print_json([dataclasses.asdict(one) for one in found])
        return
    if not found:
        click.echo("No deployment is up in this project.")
    for position, one in enumerate(found):
        head = f"{one.name}: {one.condition}"
        if one.state:
            gpus = ", ".join(map(str, one.state.gpus)) or "CPU"
            head += f"  {one.state.inference_url}  {one.state.runtime}  {gpus}"
        click.echo(("\n" if position else "") + click.style(head, bold=True))
        if one.reason:
            click.echo(f"  {one.reason}")
        for model in one.state.models if one.state else ():
            if model.unproven:
                click.echo(f"  {model.unproven}")
        if one.workers:
            show_workers(one.workers)
