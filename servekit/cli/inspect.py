"""``servekit inspect``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import yaml

from servekit.cli import output
from servekit.cli.proof import show_record
from servekit.verbs.inspect import Inspected, inspect

_SHOWN = 12


@click.command(
    "inspect",
    epilog="\b\nExamples:\n  servekit inspect digits\n  servekit inspect foreign.mar --json",
)
@click.argument("archive", metavar="NAME|PATH")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(archive: str, as_json: bool) -> None:
    """Show what an archive holds, where it comes from and what is proven of it. Nothing in it is executed."""
    found = inspect(archive, Path.cwd())
    if as_json:
        output.print_json(dataclasses.asdict(found))
        return
    _show(found)


def _show(found: Inspected) -> None:
    click.echo(click.style(f"{found.name} {found.version}", bold=True) + f"  {found.path}  ({found.form})")
    maker = f"servekit {found.ours['servekit']}" if found.ours else "not servekit"
    click.echo(f"  sha256 {found.sha256}\n  {found.size / 1e6:.1f} MB, {len(found.members)} files, made by {maker}")
    _pairs("Manifest", {k: v for k, v in found.manifest.get("model", {}).items() if v})
    if found.ours.get("weights"):
        _pairs("Weights", found.ours["weights"])
    _numbers(found)
    if found.ours.get("meta"):
        _pairs("Provenance", found.ours["meta"])
    if found.config:
        click.echo(click.style("Options", bold=True))
        for line in yaml.safe_dump(found.config, sort_keys=False, allow_unicode=True).splitlines():
            click.echo(f"  {line}")
    _members(found)
    for line in (*found.notes, *found.hints):
        click.echo(f"! {line}")
    if found.lock:
        click.echo("Requirements are locked with hashes (requirements.lock), with an SBOM (MAR-INF/sbom.cdx.json).")
    signed = f"signed by {found.signature['key']}" if found.signature else "not signed"
    click.echo(f"Signature: {signed}" + (" (not checked here: up --require-signature PUB)" if found.signature else ""))
    click.echo(f"Proof: {found.proof.standing() if found.proof else 'not proven; make one: servekit verify'}")
    for record in found.proof.records if found.proof else ():
        show_record(record)
    if found.card:
        click.echo(click.style("\nModel card", bold=True))
        click.echo(found.card.rstrip())


def _numbers(found: Inspected) -> None:
    record = found.proof.records[-1] if found.proof and found.proof.records else None
    if record is None:
        return
    told = {
        "parameters": f"{record.parameters:,}" if record.parameters is not None else None,
        "FLOPs per item": f"{record.flops:,}" if record.flops else None,
        "load": f"{record.load_s:.2f} s" if record.load_s is not None else None,
        "host memory": f"{record.host_mib:.0f} MiB" if record.host_mib else None,
    }
    _pairs("Measured", {key: value for key, value in told.items() if value})


def _members(found: Inspected) -> None:
    click.echo(click.style("Largest files", bold=True))
    by_size = sorted(found.members.items(), key=lambda item: (-item[1], item[0]))
    for name, size in by_size[:_SHOWN]:
        click.echo(f"  {size:>14,}  {name}")
    if len(by_size) > _SHOWN:
        click.echo(f"  {'':>14}  and {len(by_size) - _SHOWN} more (--json lists all)")


def _pairs(title: str, values: dict[str, Any]) -> None:
    click.echo(click.style(title, bold=True))
    width = max(map(len, values), default=0)
    for key, value in values.items():
        click.echo(f"  {key:<{width}}  {', '.join(map(str, value)) if isinstance(value, list) else value}")
