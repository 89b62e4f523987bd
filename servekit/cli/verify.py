"""``servekit verify``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from servekit.cli import output
from servekit.cli.proof import show_record
from servekit.verbs.verify import verify


@click.command(
    "verify",
    epilog="\b\nExamples:\n"
    "  servekit verify digits                      model_store/digits.mar, on the first GPU or the CPU\n"
    "  servekit verify model_store/digits.mar --gpu 1\n"
    "  servekit verify digits --signed-by key.pub --sign key",
)
@click.argument("archive", metavar="NAME|PATH")
@click.option(
    "--gpu", metavar="INDEX|none", help="Prove on this GPU, or on the CPU.  [default: the first that computes]"
)
@click.option("--signed-by", type=click.Path(path_type=Path), metavar="PUB", help="Refuse what this key did not sign.")
@click.option("--sign", type=click.Path(path_type=Path), metavar="KEY", help="Sign the archive and the grown proof.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
def command(archive: str, gpu: str | None, signed_by: Path | None, sign: Path | None, as_json: bool) -> None:
    """Prove an archive on this host and add the record to NAME.proof.json.

    Takes .mar files of servekit and of torch-model-archiver, its .tar.gz and its folders. The archive itself is
    never changed.
    """
    found = verify(archive, Path.cwd(), output.progress, gpu=gpu, sign=sign, public_key=signed_by)
    if as_json:
        output.print_json(dataclasses.asdict(found))
        return
    click.echo(f"{found.name} {found.version}  sha256 {found.sha256}")
    show_record(found.record)
    click.echo(f"  recorded in {found.proof}")
