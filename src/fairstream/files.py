"""Writing files and folders atomically, and results as JSON."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from fairstream.errors import ConfigurationError


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new one, also after a crash."""
    # Not mkstemp: only the owner could read its files, whatever the umask is.
    temporary = path.parent / f".{path.name}.{uuid4().hex}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        if temporary.parent.is_dir():
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def new_folder(path: Path, *, replacing: bool = False) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `path` when the block succeeds, remove it when it fails.

    `path` must be missing or an empty folder, unless `replacing` is set.
    """
    with sibling_tempdir(path, "tmp") as parent:
        temporary = parent / "new"
        temporary.mkdir(mode=0o700)
        yield temporary
        for file in temporary.iterdir():
            with file.open("r+b") as written:
                os.fsync(written.fileno())
        _sync_folder(temporary)
        if replacing and path.exists():
            path.replace(parent / "old")
        temporary.replace(path)
    _sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder atomically: under its name, readers find all of it or nothing, also after a crash."""
    hidden = path.with_name(f".{path.name.lstrip('.')}.{uuid4().hex}.removed")
    path.rename(hidden)
    shutil.rmtree(hidden)


@contextmanager
def sibling_tempdir(path: Path, purpose: str) -> Iterator[Path]:
    """Yield a hidden folder on the same disk as `path`, and remove it when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=f".{purpose}", dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the file system can sync a folder."""
    with suppress(OSError):  # the rename itself has succeeded
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_json(document: Mapping[str, Any]) -> str:
    """Return JSON with one line per section: the configuration stays readable above thousands of users."""
    parts = (f"{json.dumps(name)}: {json.dumps(part, allow_nan=False)}" for name, part in document.items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write_file(path: Path, content: bytes) -> None:
    """Write a result atomically; raise ConfigurationError if that fails."""
    check_writable(path)
    try:
        replace_file(path, content)
    except OSError as error:
        raise _not_written(path, error.strerror or str(error)) from None


def check_writable(path: Path) -> None:
    """Raise ConfigurationError if a result cannot be written to `path`; call it before hours of work."""
    if path.exists() and not path.is_file():  # a rename would replace /dev/null itself
        raise _not_written(path, "it is a folder" if path.is_dir() else "it is a device or a pipe")
    if not path.parent.is_dir():
        raise _not_written(path, f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise _not_written(path, f"the folder {path.parent} may not be written to")


def _not_written(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(f"the result could not be written to {path}: {reason}; choose another file")
