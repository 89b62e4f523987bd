"""``servekit list``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from servekit.cli import output
from servekit.verbs.store import stored


@click.command("list", epilog="\b\nExamples:\n  servekit list\n  servekit list --json")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(as_json: bool) -> None:
    """Show the archives in model_store/: size, proof, signature, and who serves them."""
    found = stored(Path.cwd())
    if as_json:
        output.print_json([dataclasses.asdict(one) for one in found])
        return
    if not found:
        click.echo("model_store/ holds no archive. Make one: servekit package")
        return
    output.print_table(
        ("NAME", "VERSION", "SIZE", "SHA256", "SIGNED", "SERVED BY", "PROOF"),
        [
            (
                one.name,
                one.version or "-",
                f"{one.size / 1e6:.1f} MB" if one.size else "-",
                one.sha256[:12] or "-",
                "yes" if one.signed else "-",
                ", ".join(one.served_by) or "-",
                one.problem or one.standing,
            )
            for one in found
        ],
    )
