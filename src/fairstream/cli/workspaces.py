"""How the commands of a live workspace come to it, and to the ids of people."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fairstream.errors import ConfigurationError, FairstreamError, WorkspaceError

if TYPE_CHECKING:
    from fairstream.service.workspace import Workspace


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


def read_ids(users: Sequence[str] | None, ids: str | None) -> list[str]:
    """The ids that were given as arguments and those of the file of `--ids`, or of standard input."""
    return [*(users or []), *(_ids_of(ids) if ids is not None else [])]


def _ids_of(file: str) -> list[str]:
    where = "standard input" if file == "-" else file
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where} cannot be read: {error}") from None
    if not text.startswith("["):
        lines = (line.removesuffix("\r") for line in text.split("\n"))  # other ends of lines may be part of an id
        return [line for line in lines if line]
    try:
        ids = json.loads(text)
    except ValueError:
        ids = None
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise ConfigurationError(f"{where} begins with [ and must then be a JSON list of ids in quotes")
    return ids
