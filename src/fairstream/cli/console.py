"""Where a command prints to, how it writes JSON, and what it says when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fairstream.errors import ConfigurationError
from fairstream.files import check_writable, to_json, write_json

_WIDTH_OF_A_FILE = 120


class Interrupted(Exception):  # noqa: N818 (nothing went wrong)
    """Somebody pressed Ctrl-C; the message says what was kept."""


@contextmanager
def on_interrupt(what_is_kept: Callable[[], str] | str) -> Iterator[None]:
    """End the command with exit code 130 and a sentence when somebody presses Ctrl-C in the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(what_is_kept if isinstance(what_is_kept, str) else what_is_kept()) from None


def make_console(*, quiet: bool = False, json: str | None = None) -> Console:
    """As wide as the terminal; into a file or a pipe, wide enough that no table loses a digit.

    Silent where `--json -` has standard output to itself.
    """
    console = Console(quiet=quiet or json == "-")
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    return console


def new_table(title: str, caption: str | None = None) -> Table:
    """An empty table with a title and a caption."""
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def print_lines(console: Console, *lines: str) -> None:
    """Print sentences as they are, without markup, and as long as they are."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_error(sentence: str) -> None:
    """Print a sentence to standard error, after the name of the program."""
    Console(stderr=True).print(f"fairstream: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)


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
