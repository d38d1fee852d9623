"""The workspace: a folder with its configuration, its models, and where its database is.

    fairstream.toml     the configuration, to be edited
    database            the address of PostgreSQL, where the workspace is not on SQLite
    secret              what ids of forgotten users are hashed with
    events.sqlite       events, periods, models, the audit record, keys (SQLite)
    people.sqlite       who belongs to which group, apart from all else (SQLite)
    people-database     the address of PostgreSQL as the role that owns the schema `people`, where it is another
    audit-head          number and hash of the audit record's last entry
    models/             a checkpoint for each model; with PostgreSQL a cache of those in the database

Many processes may read a workspace and add events to it; one at a time may update it, and a lock
sees to that. On SQLite they are on one machine. With PostgreSQL they may be on several, each with a
folder that holds the same `fairstream.toml`, `database` and `secret`.

The folder and its files are for their owner alone: whenever a workspace is opened their modes are set.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from fairstream.errors import WorkspaceError
from fairstream.files import replace_file
from fairstream.service.audit import UPGRADE, audited, baseline, record
from fairstream.service.database import (
    EVENTS_FILE,
    PEOPLE_FILE,
    connect,
    need_current,
    reachable,
    revision,
    upgrade,
    writing,
)
from fairstream.service.model_store import DatabaseModelStore, ModelStore
from fairstream.service.people import PeopleStore
from fairstream.service.secret import check_secret, make_secret, store_check
from fairstream.service.settings import FILE, LiveConfig

_DATABASE, _PEOPLE_DATABASE, _SECRET, _LOCK = "database", "people-database", "secret", ".updating"
_HEAD = "audit-head"
_PRIVATE = (_DATABASE, _PEOPLE_DATABASE, _SECRET, EVENTS_FILE, PEOPLE_FILE, "models", _HEAD)
"""What the names of files begin with that are for the owner alone."""
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
        engine = connect(folder / EVENTS_FILE, database)
        with _let_go(engine), _made_or_gone(folder), reachable(engine):
            if database is None:
                for name in (EVENTS_FILE, PEOPLE_FILE):  # SQLite gives its other files the mode of this one
                    os.close(os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o600))
            if revision(engine) is not None:
                raise WorkspaceError("the database holds a workspace already; give the address of an empty one")
            upgrade(engine)
            if database is not None:
                _write_private(folder / _DATABASE, database.encode())
            secret = make_secret()
            _write_private(folder / _SECRET, secret)
            with writing(audited(engine, secret, _heads(folder, config))) as connection:
                store_check(connection, secret)
                record(connection, "init", {"configuration": config.to_dict()})
            config.write(folder)  # last: a folder with this file is a workspace
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path, *, for_requests: bool = False) -> Workspace:
        """Open a workspace that was made before; `for_requests` limits how long PostgreSQL may take."""
        config = LiveConfig.read(_need(folder))
        _make_private(folder)
        engine = _engine_of(folder, for_requests=for_requests)
        try:
            need_current(engine)
            secret = _read(folder / _SECRET)
            with reachable(engine):
                check_secret(engine, secret, folder / _SECRET)
            on_sqlite, models = engine.dialect.name == "sqlite", folder / "models"
            store = ModelStore(models) if on_sqlite else DatabaseModelStore(models, engine)
            return cls(folder, config, audited(engine, secret, _heads(folder, config)), secret, store)
        except BaseException:
            engine.dispose()
            raise

    @classmethod
    def upgrade(cls, folder: Path) -> bool:
        """Bring the tables of a workspace to what this version wants; says whether they were not so already."""
        config, secret, engine = LiveConfig.read(_need(folder)), _read(folder / _SECRET), _engine_of(folder)
        with _let_go(engine), reachable(engine):
            before = revision(engine)
            check_secret(engine, secret, folder / _SECRET)
            upgrade(engine)
            with writing(audited(engine, secret, _heads(folder, config))) as connection:
                store_check(connection, secret)
                if before == "0001":  # from here on the record has a key
                    record(connection, UPGRADE, baseline(connection))
            return before != revision(engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()

    def people(self) -> PeopleStore:
        """Open the store of who belongs to which group; a process that answers requests never does."""
        address = self.folder / _PEOPLE_DATABASE
        url = _address(address if address.exists() else self.folder / _DATABASE)
        if url is None and not (self.folder / PEOPLE_FILE).is_file():
            raise WorkspaceError(
                f"{self.folder / PEOPLE_FILE}, which says who is in which group, is missing; restore it from a backup"
            )
        return PeopleStore(connect(self.folder / PEOPLE_FILE, url), self.engine, self.secret)

    def check_files(self) -> None:
        """Read every page of a SQLite database and refuse one that is damaged; PostgreSQL has checksums of its own."""
        if self.engine.dialect.name != "sqlite":
            return
        for name in (EVENTS_FILE, PEOPLE_FILE):
            with closing(sqlite3.connect(f"file:{quote(str(self.folder / name))}?mode=ro", uri=True)) as connection:
                try:
                    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                except sqlite3.DatabaseError as error:
                    found = str(error)
            if found != "ok":
                raise WorkspaceError(
                    f"{self.folder / name} is damaged ({found.splitlines()[-1]}); restore it from a backup"
                )

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
        """A lock of PostgreSQL that is held by a connection of its own, so that it excludes other machines too.

        It is given back before the connection is closed: the server ends a closed connection's lock a moment later.
        """
        with reachable(self.engine):
            connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with connection:
            with reachable(self.engine):
                connection.detach()  # closed at the end instead of given back, and the lock with it
                is_free = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_UPDATING})").scalar_one()
            try:
                yield bool(is_free)
            finally:
                if is_free:
                    with suppress(DBAPIError):  # the server is away, and the lock with it
                        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_UPDATING})")


def _write_private(path: Path, content: bytes) -> None:
    replace_file(path, content)
    path.chmod(0o600)


def _need(folder: Path) -> Path:
    if not (folder / FILE).is_file():
        raise WorkspaceError(f"{folder} is not a workspace: there is no {FILE}; make one with `fairstream init`")
    return folder


def _heads(folder: Path, config: LiveConfig) -> tuple[Path, ...]:
    """The files that hold the hash of the audit record's last entry."""
    elsewhere = () if config.audit_head is None else (folder / config.audit_head,)
    return (folder / _HEAD, *elsewhere)


def _make_private(folder: Path) -> None:
    """Let nobody but the owner read the folder and its files, whatever their modes were."""
    with suppress(PermissionError):  # a mounted folder may be another's; the files in it are not
        folder.chmod(0o700)
    for path in (path for name in _PRIVATE for path in folder.glob(f"{name}*")):
        try:
            path.chmod(0o700 if path.is_dir() else 0o600)
        except FileNotFoundError:  # a file of SQLite that was in use a moment ago
            continue
        except OSError as error:
            if path.stat().st_mode & 0o077:
                raise WorkspaceError(
                    f"{path} can be read by others and its mode cannot be set: {error.strerror}; "
                    f"run as its owner, or chmod it to 600"
                ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WorkspaceError(
            f"{path} cannot be read: {error.strerror}; no workspace opens without it, restore it from a backup"
        ) from None


def _address(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None


def _engine_of(folder: Path, *, for_requests: bool = False) -> Engine:
    return connect(folder / EVENTS_FILE, _address(folder / _DATABASE), for_requests=for_requests)


@contextmanager
def _let_go(engine: Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


@contextmanager
def _made_or_gone(folder: Path) -> Iterator[None]:
    """A new folder, or one that was empty; where the block fails it is so again."""
    try:
        was_there = folder.exists()
        if was_there and any(folder.iterdir()):
            raise WorkspaceError(f"{folder} is not empty; give the name of a folder that does not exist yet")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise WorkspaceError(f"the folder {folder} cannot be made: {error.strerror}") from None
    mode = folder.stat().st_mode & 0o7777
    try:
        with suppress(PermissionError):
            folder.chmod(0o700)
        yield
    except BaseException as error:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not was_there:
            folder.rmdir()
        else:
            with suppress(PermissionError):
                folder.chmod(mode)
        if isinstance(error, OSError):
            raise WorkspaceError(f"{folder} cannot be written to: {error.strerror}") from None
        raise
