"""Where a command prints to."""

from __future__ import annotations

from rich.console import Console

_WIDTH_OF_A_FILE = 120


def make_console(*, quiet: bool) -> Console:
    """As wide as the terminal; into a file or a pipe, wide enough that no table loses a digit."""
    console = Console(quiet=quiet)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    return console
