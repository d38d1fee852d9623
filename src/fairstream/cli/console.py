"""Where a command prints to, and how it writes JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fairstream.errors import ConfigurationError
from fairstream.files import check_writable, to_json, write_json

_WIDTH_OF_A_FILE = 120

Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - prints it.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def make_console(*, quiet: bool) -> Console:
    """As wide as the terminal; into a file or a pipe, wide enough that no table loses a digit."""
    console = Console(quiet=quiet)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    return console


def check_json(json: str | None) -> None:
    """Raise now if the JSON cannot be written there, not after hours of work."""
    if json not in (None, "-"):
        check_writable(Path(json or ""))


def write_result(document: Mapping[str, Any], json: str | None) -> None:
    """Write the document where `--json` says; if the disk has filled up, print it rather than lose it."""
    if json is None:
        return
    if json != "-":
        try:
            write_json(document, Path(json))
        except ConfigurationError:
            typer.echo(to_json(document), nl=False)
            raise
    else:
        typer.echo(to_json(document), nl=False)
