"""How the commands of a live workspace come to it."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairstream.errors import ConfigurationError, FairstreamError, WorkspaceError

if TYPE_CHECKING:
    from fairstream.service.workspace import Workspace

WorkspaceFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The workspace.", show_default=False)]


@contextmanager
def opened(folder: Path) -> Iterator[Workspace]:
    """An open workspace; what it needs is loaded only when a command asks for it."""
    with needing_live():
        from fairstream.service.database import reachable  # noqa: PLC0415 (an extra)
        from fairstream.service.workspace import Workspace  # noqa: PLC0415
    try:
        with Workspace.open(folder) as workspace, reachable(workspace.engine):
            yield workspace
    except FairstreamError:
        raise
    except OSError as error:  # the disk is full, or cannot be written to
        raise WorkspaceError(f"{error.filename or folder}: {error.strerror or error}") from None


@contextmanager
def needing_live() -> Iterator[None]:
    """Say in a sentence which extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"this command needs {error.name}, which is not installed; pip install 'fairstream[live]'"
        ) from None


def who() -> str:
    """Who gives a command, for the record."""
    try:
        return f"command line: {getpass.getuser()}"
    except (KeyError, OSError):  # a user without a name
        return "command line"
