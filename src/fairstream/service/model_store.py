"""The models' files: a folder for each, written once and never changed.

With SQLite they are in the workspace's folder `models/`. With PostgreSQL the database holds them, so that any machine
can serve them, and `models/` is a cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, insert, select

from fairstream.errors import CheckpointError, WorkspaceError
from fairstream.files import new_folder, remove_folder
from fairstream.service.database import reading, writing
from fairstream.service.schema import model_files

_PART_BYTES = 4 << 20


class ModelStore:
    """The models of a workspace on SQLite.

    A process that adds or removes models holds the workspace's lock for updating; any process may read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Yield a temporary folder, which gets this name when the block succeeds."""
        with new_folder(self._folder / name) as folder:
            yield folder

    def path(self, name: str) -> Path:
        """Return the folder of a model on this machine."""
        if not (self._folder / name).is_dir():
            raise CheckpointError(f"the files of model {name} are missing: there is no {self._folder / name}")
        return self._folder / name

    def exists(self, name: str) -> bool:
        return name in self.names()

    def names(self) -> set[str]:
        return {path.name for path in self._folder.iterdir() if path.is_dir() and not path.name.startswith(".")}

    def hashes(self, name: str) -> set[str]:
        """Return the hashes of a model's files in each place that stores them."""
        return {folder_hash(folder)} if (folder := self._folder / name).is_dir() else set()

    def remove(self, names: Iterable[str]) -> None:
        """Remove models, and the leftovers of killed processes."""
        for name in names:
            if (self._folder / name).exists():
                remove_folder(self._folder / name)
        self._sweep()

    def _sweep(self) -> None:
        """Remove hidden folders: no process writes now, so killed ones have left them."""
        for path in self._folder.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)


class DatabaseModelStore(ModelStore):
    """The models of a workspace on PostgreSQL, with a cache on this machine."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        super().__init__(folder)
        self._engine = engine

    @contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Yield a temporary folder, whose files are in the database when the block succeeds."""
        with file_lock(self._folder / ".writing"), super().new(name) as folder:
            yield folder
            with writing(self._engine) as connection:
                insert_files(connection, name, folder)

    def path(self, name: str) -> Path:
        """Fetch a model from the database unless this machine has it; return its folder."""
        with file_lock(self._folder / ".fetching"):  # one process of this machine fetches, the others wait for it
            cached = super().names()  # read before the database: a new model is in the database first
            stored = self.names()
            for stale in cached - stored:
                shutil.rmtree(self._folder / stale, ignore_errors=True)
            self._sweep()
            if name in stored - cached:
                with new_folder(self._folder / name) as folder:
                    for file, content in self._parts(name):
                        with (folder / file).open("ab") as opened:
                            opened.write(content)
        return super().path(name)

    def names(self) -> set[str]:
        with reading(self._engine) as connection:
            return set(connection.scalars(select(model_files.c.folder).distinct()))

    def hashes(self, name: str) -> set[str]:
        parts = groupby(self._parts(name), key=itemgetter(0))
        stored = _hash((file, (content for _, content in rows)) for file, rows in parts)
        return super().hashes(name) | ({stored} - {_hash(())})

    def remove(self, names: Iterable[str]) -> None:
        """Remove models from the database and this machine; other machines drop them when they load the next."""
        names = list(names)
        with writing(self._engine) as connection:
            connection.execute(delete(model_files).where(model_files.c.folder.in_(names)))
        with file_lock(self._folder / ".fetching"):
            super().remove(names)

    def _sweep(self) -> None:
        with file_lock(self._folder / ".writing", wait=False) as is_free:
            if is_free:  # otherwise a process writes a folder
                super()._sweep()

    def _parts(self, model: str) -> Iterator[Row[Any, Any]]:
        """Yield the name of the file and the content of each part of a model; one statement sees all or nothing."""
        files = model_files.c
        query = select(files.name, files.content).where(files.folder == model).order_by(files.name, files.part)
        with reading(self._engine) as connection:
            yield from connection.execute(query, execution_options={"yield_per": 1})


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock of this machine, which ends with the process; without `wait` yield whether it was free."""
    try:
        file = path.open("ab")
    except OSError as error:
        raise WorkspaceError(f"{path.parent} cannot be written to: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def folder_hash(folder: Path) -> str:
    """Return a hash of the names and contents of the files in a folder."""
    return _hash((file.name, _read_parts(file)) for file in folder.iterdir())


def _hash(files: Iterable[tuple[str, Iterable[bytes]]]) -> str:
    lines = []
    for name, parts in files:
        content = hashlib.sha256()
        for part in parts:
            content.update(part)
        lines.append(f"{name} {content.hexdigest()}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _read_parts(file: Path) -> Iterator[bytes]:
    with file.open("rb") as content:
        yield content.read(_PART_BYTES)  # an empty file has one part
        while part := content.read(_PART_BYTES):
            yield part


def insert_files(connection: Connection, model: str, folder: Path) -> None:
    """Store the files of a model in the database."""
    for file in folder.iterdir():
        for part, content in enumerate(_read_parts(file)):
            connection.execute(insert(model_files).values(folder=model, name=file.name, part=part, content=content))
