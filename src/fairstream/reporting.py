"""The logger of the library."""

from __future__ import annotations

import logging
from collections.abc import Iterable

LOGGER = logging.getLogger("fairstream")
"""Notes are warnings, progress and decisions are information. Silence it with `LOGGER.setLevel("ERROR")`."""

COMPILING = logging.getLogger("fairstream.compiling")
"""Announces a compilation, which may take a minute and happens once on a machine."""


def silence() -> None:
    """Keep the logger off standard error: the command line prints notes itself."""
    LOGGER.addHandler(logging.NullHandler())


def report(notes: Iterable[str], level: int = logging.WARNING) -> None:
    """Log each note, for callers who do not read `notes`."""
    for note in notes:
        LOGGER.log(level, "%s", note)
