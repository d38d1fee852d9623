"""Writing a file, or a folder, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write under another name, flush to disk, rename: at `path` is the old file or the new one."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
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
    """A folder beside `path` to write into, which gets that name when the block has ended well.

    At `path` there must be nothing, or an empty folder, or with `replacing` what is to give way.
    Whatever fails, nothing is left behind and what was there stays.
    """
    with sibling_tempdir(path, "tmp") as temporary:
        yield temporary
        for file in temporary.iterdir():
            with file.open("r+b") as written:
                os.fsync(written.fileno())
        _sync_folder(temporary)
        with _moved_aside(path) if replacing and path.exists() else nullcontext():
            temporary.replace(path)
    _sync_folder(path.parent)


@contextmanager
def _moved_aside(path: Path) -> Iterator[None]:
    """Put what is at `path` aside; when the block has ended well it is gone, else it is back."""
    with sibling_tempdir(path, "old") as aside:
        old = aside / path.name
        try:
            path.replace(old)
            yield
        except BaseException:
            if old.exists():
                old.replace(path)
            raise


@contextmanager
def sibling_tempdir(path: Path, purpose: str) -> Iterator[Path]:
    """A hidden folder on the same disk as `path`, which is gone when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=f".{purpose}", dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the file system lets a folder be synced.

    By now the new file is in place: a refusal here is no failure to write.
    """
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
