"""Open a workspace; name the user for the audit record."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairstream.errors import FairstreamError, WorkspaceError
from fairstream.service.database import reachable
from fairstream.service.workspace import Workspace


@contextmanager
def opened(folder: Path) -> Iterator[Workspace]:
    """Open a workspace; a database or a disk that fails is a WorkspaceError."""
    try:
        with Workspace.open(folder) as workspace, reachable(workspace.engine):
            yield workspace
    except FairstreamError:
        raise
    except OSError as error:  # the disk is full, or cannot be written to
        raise WorkspaceError(f"{error.filename or folder}: {error.strerror or error}") from None


def who() -> str:
    """Return the user who gives the command, for the audit record."""
    try:
        return f"command line: {getpass.getuser()}"
    except (KeyError, OSError):  # a user without a name
        return "command line"
