"""The models' files: a folder for each, written once and never changed.

With SQLite they are in the workspace's folder `models/`. With PostgreSQL the database holds them, so that any machine
can serve them, and `models/` is a cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, delete, func, insert, select

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
        if not self.exists(name):
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
        """Return the folder of a model on this machine, fetched from the database unless it is complete."""
        with file_lock(self._folder / ".fetching"):  # one process of this machine fetches, the others wait for it
            cached = super().names()  # read before the database: a new model is in the database first
            stored = self._sizes()
            for stale in cached - stored.keys():
                shutil.rmtree(self._folder / stale, ignore_errors=True)
            self._sweep()
            if name not in stored:
                raise CheckpointError(f"the files of model {name} are missing: the database does not have them")
            if _sizes_on_disk(self._folder / name) != stored[name]:
                with new_folder(self._folder / name, replacing=True) as folder:
                    self._fetch(name, stored[name], folder)
        return self._folder / name

    def names(self) -> set[str]:
        return set(self._sizes())

    def hashes(self, name: str) -> set[str]:
        with reading(self._engine) as connection:
            stored = connection.scalars(select(model_files.c.name).where(model_files.c.folder == name).distinct())
            parts = {file: self._parts(connection, name, file) for file in stored.all()}
            return super().hashes(name) | ({_hash(parts)} if parts else set())

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

    def _sizes(self) -> dict[str, dict[str, int]]:
        """Return the number of bytes in the database, by model and file."""
        query = select(model_files.c.folder, model_files.c.name, func.sum(func.octet_length(model_files.c.content)))
        sizes: dict[str, dict[str, int]] = {}
        with reading(self._engine) as connection:
            for folder, name, size in connection.execute(query.group_by(model_files.c.folder, model_files.c.name)):
                sizes.setdefault(folder, {})[name] = int(size)
        return sizes

    def _fetch(self, model: str, sizes: dict[str, int], folder: Path) -> None:
        with reading(self._engine) as connection:
            for name in sizes:
                with (folder / name).open("wb") as file:
                    file.writelines(self._parts(connection, model, name))
        if _sizes_on_disk(folder) != sizes:
            raise CheckpointError(f"model {model} was removed while it was fetched")

    def _parts(self, connection: Connection, model: str, name: str) -> Iterator[bytes]:
        files = model_files.c
        query = select(files.content).where(files.folder == model, files.name == name).order_by(files.part)
        yield from connection.execution_options(yield_per=1).scalars(query)


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
    return _hash({file.name: _read_parts(file) for file in folder.iterdir()})


def _hash(files: Mapping[str, Iterable[bytes]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        content = hashlib.sha256()
        for part in files[name]:
            content.update(part)
        digest.update(f"{name} {content.hexdigest()}\n".encode())
    return digest.hexdigest()


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


def _sizes_on_disk(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir()} if folder.is_dir() else {}
