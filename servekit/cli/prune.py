"""``servekit prune``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from servekit.cli import output
from servekit.verbs.store import remove, unneeded


@click.command(
    "prune",
    epilog="\b\nExamples:\n"
    "  servekit prune                    unpacked copies that nothing serves, proofs without an archive\n"
    "  servekit prune --archives --yes   also archives that neither servekit.toml nor a deployment names",
)
@click.option("--archives", is_flag=True, help="Also archives that neither servekit.toml nor a deployment names.")
@click.option("--yes", is_flag=True, help="Remove; without it, only show what would go.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(archives: bool, yes: bool, as_json: bool) -> None:
    """Show, and with --yes remove, what no deployment needs."""
    found = unneeded(Path.cwd(), archives=archives)
    freed = remove(found) if yes else 0
    if as_json:
        output.print_json(
            {
                "removed": yes,
                "bytes": sum(one.size for one in found),
                "found": [dataclasses.asdict(one) for one in found],
            }
        )
        return
    for one in found:
        click.echo(f"{'removed' if yes else 'would remove'} {one.path}  ({one.size / 1e6:.1f} MB; {one.why})")
    if not found:
        click.echo("Nothing to remove.")
    elif yes:
        click.echo(f"{freed / 1e6:.1f} MB are free again.")
    else:
        click.echo(f"{sum(one.size for one in found) / 1e6:.1f} MB; remove them with --yes.")
