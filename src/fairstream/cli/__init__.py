"""The command line: one thin file a command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from fairstream._version import __version__
from fairstream.cli.audit import audit
from fairstream.cli.compare import compare
from fairstream.cli.consume import consume
from fairstream.cli.data import data_app
from fairstream.cli.demo import demo
from fairstream.cli.explain import explain
from fairstream.cli.forget import forget
from fairstream.cli.frontier import frontier
from fairstream.cli.ingest import ingest
from fairstream.cli.init import init
from fairstream.cli.keys import keys_app
from fairstream.cli.promote import promote, rollback
from fairstream.cli.report import report
from fairstream.cli.reproduce import reproduce
from fairstream.cli.run import run
from fairstream.cli.serve import serve
from fairstream.cli.sweep import sweep
from fairstream.cli.update import update
from fairstream.errors import FairstreamError

app = typer.Typer(
    name="fairstream",
    help="Recommendations that keep up with new data and stay fair to groups of users while they do.",
    epilog="Start with `fairstream demo`; then `fairstream run FOLDER --group COLUMN` on data of your own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(demo)
app.command()(run)
app.command()(compare)
app.command()(explain)
app.command()(sweep)
app.command()(frontier)
app.command()(reproduce)
app.command()(report)
app.command()(init)
app.command()(ingest)
app.command()(consume)
app.command()(serve)
app.add_typer(data_app, name="data")
app.command()(update)
app.command()(promote)
app.command()(rollback)
app.command()(forget)
app.command()(audit)
app.add_typer(keys_app, name="keys")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fairstream {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; what a user can put right becomes one sentence and exit code 2."""
    try:
        app()
    except FairstreamError as error:
        Console(stderr=True).print(f"fairstream: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
