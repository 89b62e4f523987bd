"""``servekit token show|rotate``."""

from __future__ import annotations

from pathlib import Path

import click

from servekit.cli import output
from servekit.system.tokens import KINDS, Token
from servekit.verbs import token as verb

_NAME = click.option("--name", help="Default: the only deployment of this project.")
_KIND = click.option("--kind", type=click.Choice(KINDS), default="inference", show_default=True)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")


@click.group(
    "token",
    epilog="\b\nExamples:\n"
    "  servekit token show\n"
    "  servekit token show --curl | sh\n"
    "  servekit token rotate --kind inference",
)
def command() -> None:
    """Show or rotate the access token.

    Clients send it as `Authorization: Bearer TOKEN`.
    """


@command.command()
@_NAME
@_KIND
@_JSON
@click.option("--curl", "as_curl", is_flag=True, help="Print a curl command that works.")
def show(name: str | None, kind: str, as_json: bool, as_curl: bool) -> None:
    """Print the token; an expired one is renewed first."""
    if as_curl:
        click.echo(verb.curl(Path.cwd(), name, kind))
    else:
        _print(verb.show(Path.cwd(), name, kind), as_json)


@command.command()
@_NAME
@_KIND
@_JSON
def rotate(name: str | None, kind: str, as_json: bool) -> None:
    """Replace the token; the old one stops working at once, for every client."""
    _print(verb.rotate(Path.cwd(), name, kind), as_json)


def _print(token: Token, as_json: bool) -> None:
    if as_json:
        output.print_json({"kind": token.kind, "token": token.key, "expires": token.expires})
        return
    click.echo(token.key)
    if token.expires:
        output.progress(f"{token.kind} token, valid until {token.expires:%Y-%m-%d %H:%M} UTC")
