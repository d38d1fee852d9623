"""The workspace: a folder with its configuration, its models, and where its database is.

    fairstream.toml     the configuration, to be edited
    database            the address of PostgreSQL, where the workspace is not on SQLite
    secret              what ids of forgotten users are hashed with
    events.sqlite       events, periods, models, the audit record, keys (SQLite)
    people.sqlite       who belongs to which group, apart from all else (SQLite)
    models/             a checkpoint for each model; with PostgreSQL a cache of those in the database

Many processes may read a workspace and add events to it; one at a time may update it, and a lock
sees to that. On SQLite they are on one machine. With PostgreSQL they may be on several, each with a
folder that holds the same `fairstream.toml`, `database` and `secret`.
"""

from __future__ import annotations

import fcntl
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sqlalchemy import Engine

from fairstream.errors import WorkspaceError
from fairstream.files import replace_file
from fairstream.service.audit import record
from fairstream.service.database import connect, need_current, reachable, revision, upgrade, writing
from fairstream.service.model_store import DatabaseModelStore, ModelStore
from fairstream.service.settings import FILE, LiveConfig

_DATABASE, _SECRET, _LOCK = "database", "secret", ".updating"
_UPDATING = 0x75706474
"""The number of PostgreSQL's lock that whoever updates holds."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """An open workspace."""

    folder: Path
    config: LiveConfig
    engine: Engine
    secret: bytes = field(repr=False)
    models: ModelStore

    @classmethod
    def create(cls, folder: Path, config: LiveConfig, database: str | None = None) -> Workspace:
        """Make a workspace in an empty or new folder; nothing that is there is touched."""
        engine = connect(folder, database)
        with _let_go(engine), _made_or_gone(folder), reachable(engine):
            if revision(engine) is not None:
                raise WorkspaceError("the database holds a workspace already; give the address of an empty one")
            upgrade(engine)
            if database is not None:
                _write_private(folder / _DATABASE, database.encode())
            _write_private(folder / _SECRET, secrets.token_bytes(32))
            with writing(engine) as connection:
                record(connection, "init", {"configuration": config.model_dump()})
            config.write(folder)  # last: a folder with this file is a workspace
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Workspace:
        """Open a workspace that was made before."""
        config, engine = LiveConfig.read(_need(folder)), _engine_of(folder)
        try:
            need_current(engine)
            on_sqlite, models = engine.dialect.name == "sqlite", folder / "models"
            store = ModelStore(models) if on_sqlite else DatabaseModelStore(models, engine)
            return cls(folder, config, engine, (folder / _SECRET).read_bytes(), store)
        except BaseException:
            engine.dispose()
            raise

    @classmethod
    def upgrade(cls, folder: Path) -> bool:
        """Bring the tables of a workspace to what this version wants; says whether they were not so already."""
        engine = _engine_of(_need(folder))
        with _let_go(engine), reachable(engine):
            before = revision(engine)
            upgrade(engine)
            return before != revision(engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Be the one that changes models; another that tries meanwhile is refused.

        The lock ends with the block, also when the process is killed.
        """
        lock = self._file_lock() if self.engine.dialect.name == "sqlite" else self._database_lock()
        with lock as is_free:
            if not is_free:
                raise WorkspaceError(f"{self.folder} is being updated by another process; wait until it has ended")
            yield

    @contextmanager
    def _file_lock(self) -> Iterator[bool]:
        try:
            file = (self.folder / _LOCK).open("ab")
        except OSError as error:
            raise WorkspaceError(f"{self.folder} cannot be written to: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    @contextmanager
    def _database_lock(self) -> Iterator[bool]:
        """A lock of PostgreSQL that is held by a connection of its own, so that it excludes other machines too."""
        with reachable(self.engine):
            connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with connection:
            with reachable(self.engine):
                connection.detach()  # closed at the end instead of given back, and the lock with it
                is_free = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_UPDATING})").scalar_one()
            yield bool(is_free)


def _write_private(path: Path, content: bytes) -> None:
    replace_file(path, content)
    path.chmod(0o600)


def _need(folder: Path) -> Path:
    if not (folder / FILE).is_file():
        raise WorkspaceError(f"{folder} is not a workspace: there is no {FILE}; make one with `fairstream init`")
    return folder


def _engine_of(folder: Path) -> Engine:
    address = folder / _DATABASE
    return connect(folder, address.read_text().strip() if address.exists() else None)


@contextmanager
def _let_go(engine: Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


@contextmanager
def _made_or_gone(folder: Path) -> Iterator[None]:
    """A new folder, or one that was empty; where the block fails nothing is left in it."""
    try:
        was_there = folder.exists()
        if was_there and any(folder.iterdir()):
            raise WorkspaceError(f"{folder} is not empty; give the name of a folder that does not exist yet")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise WorkspaceError(f"the folder {folder} cannot be made: {error.strerror}") from None
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if was_there:
            folder.mkdir(mode=0o700)
        raise
