"""``servekit keygen``."""

from __future__ import annotations

from pathlib import Path

import click

from servekit.cli import output
from servekit.system.trust import keys


@click.command(
    "keygen",
    epilog="\b\nExamples:\n"
    "  servekit keygen release.key              writes release.key and release.key.pub\n"
    "  servekit package net.pt ... --sign release.key\n"
    "  servekit up net --require-signature release.key.pub",
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(path: Path, as_json: bool) -> None:
    """Make an ed25519 key pair: PATH, which stays secret, and PATH.pub.

    A passphrase for PATH is taken from SERVEKIT_KEY_PASSPHRASE.
    """
    fingerprint = keys.generate(path)
    public = path.with_name(f"{path.name}.pub")
    if as_json:
        output.print_json({"private": path, "public": public, "fingerprint": fingerprint})
        return
    click.echo(f"{fingerprint}\n  {path}      the private key; keep it secret\n  {public}  for those who check")
