"""The logger of the library, and how notes reach it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

LOGGER = logging.getLogger("fairstream")
"""Notes are warnings; what fits and updates do is information. Silence it with `LOGGER.setLevel("ERROR")`."""

COMPILING = logging.getLogger("fairstream.compiling")
"""Says that code is being compiled, which can take the better part of a minute and happens once on a machine."""


def silence() -> None:
    """Let nothing through to standard error that no handler was set for: the command line prints notes itself."""
    LOGGER.addHandler(logging.NullHandler())


def report(notes: Iterable[str]) -> None:
    """Log each note: whoever does not look at `notes` sees them all the same."""
    for note in notes:
        LOGGER.warning("%s", note)
