"""Terminal output of the commands, their JSON, and interruptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fairstream.display import Table
from fairstream.errors import ConfigurationError
from fairstream.files import check_writable, to_json, write_file

Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        help="Write the result as JSON; - writes it to standard output, and nothing else.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


class Interrupted(Exception):  # noqa: N818 (nothing went wrong)
    """The user pressed Ctrl-C; the message says what the command keeps."""


@contextmanager
def on_interrupt(outcome: Callable[[], str] | str) -> Iterator[None]:
    """On Ctrl-C, end the command with exit code 130 and this sentence."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(outcome if isinstance(outcome, str) else outcome()) from None


@dataclass(frozen=True)
class Output:
    """The options `--json` and `--quiet`. Creating it raises ConfigurationError if the JSON file cannot be written."""

    json: Json = None
    quiet: Quiet = False

    def __post_init__(self) -> None:
        if self.json not in (None, "-"):
            check_writable(Path(self.json or ""))

    @cached_property
    def console(self) -> Console:
        """The console: silent under `--quiet`, and under `--json -`, which owns standard output."""
        console = Console(quiet=self.quiet or self.json == "-")
        if not console.is_terminal:
            console.width = 10_000  # a file or a pipe has no width: no table may lose a digit or a mark
        return console

    def print(self, *parts: str | Table) -> None:
        """Print tables, and sentences without markup or line breaks."""
        for part in parts:
            if isinstance(part, str):
                self.console.print(part, markup=False, highlight=False, soft_wrap=True)
            else:
                self.console.print(part)

    def write(self, document: Mapping[str, Any]) -> None:
        """Write the document to the target of `--json`; if that fails, print it rather than lose it."""
        try:
            if self.json not in (None, "-"):
                write_file(Path(self.json or ""), to_json(document).encode())
        except ConfigurationError:
            typer.echo(to_json(document), nl=False)
            raise
        if self.json == "-":
            typer.echo(to_json(document), nl=False)


def print_error(sentence: str) -> None:
    """Print a sentence to standard error, after the name of the program."""
    Console(stderr=True).print(f"fairstream: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
