"""The workspace: a folder with its configuration, its models, and its database or the address of it.

    fairstream.toml     the configuration, to be edited
    database            the address of PostgreSQL, where the workspace is not on SQLite (or FAIRSTREAM_DATABASE)
    secret              what ids of forgotten users are hashed with (or the file that FAIRSTREAM_SECRET_FILE names)
    events.sqlite       events, periods, models, the audit record, keys (SQLite)
    people.sqlite       the groups of users, separate from everything else (SQLite)
    models/             a checkpoint for each model; with PostgreSQL a cache of those in the database

Many processes may read a workspace and add events to it; a lock lets one at a time update it. With SQLite they are on
one machine. With PostgreSQL they may be on several, each with a folder that holds the same `fairstream.toml`,
`database` and `secret`. Only the owner may read the folder and its files.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sqlalchemy import Engine, insert, make_url, select
from sqlalchemy.exc import DBAPIError

from fairstream.errors import WorkspaceError
from fairstream.files import replace_file, sibling_tempdir
from fairstream.service.audit import audited, record
from fairstream.service.database import (
    EVENTS_FILE,
    OF_SCHEMA,
    PEOPLE_FILE,
    connect,
    latest_revision,
    need_current,
    reachable,
    read_text,
    reading,
    revision,
    upgrade,
    uri_of,
    writing,
)
from fairstream.service.model_store import DatabaseModelStore, ModelStore, file_lock
from fairstream.service.people import PeopleStore
from fairstream.service.schema import secret_check
from fairstream.service.settings import FILE, LiveConfig

_DATABASE, SECRET, _LOCK = "database", "secret", ".updating"
_UPDATING = 0x75706474  # PostgreSQL's number of the lock for updating
_SECRET_BYTES = 32
_SECRET_FILE = "FAIRSTREAM_SECRET_FILE"  # noqa: S105 (the name of the variable)


class UpdatingError(WorkspaceError):
    """Another process holds the lock for updating."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """An open workspace."""

    folder: Path
    config: LiveConfig
    engine: Engine
    secret: bytes = field(repr=False)
    models: ModelStore
    people: PeopleStore

    @classmethod
    def create(cls, folder: Path, config: LiveConfig, database: str | None = None) -> Workspace:
        """Make a workspace in an empty or new folder."""
        try:
            with new_folder(folder) as new:
                with new_database(new, database) as engine:
                    secret = _new_secret(new / SECRET)
                    with writing(audited(engine, secret)) as connection:
                        connection.execute(insert(secret_check).values(id=1, digest=_check_value(secret)))
                        in_force = LiveConfig.parse(config.to_toml())  # with what the environment sets
                        record(connection, "init", {"configuration": in_force.to_dict()})
                config.write(new)
        except OSError as error:
            raise WorkspaceError(f"{folder} cannot be made: {error.strerror or error}") from None
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path, *, for_requests: bool = False) -> Workspace:
        """Open a workspace; `for_requests` limits how long PostgreSQL may take."""
        config = LiveConfig.read(_require_workspace(folder))
        with suppress(OSError):  # a mounted folder may be another's, or read-only
            folder.chmod(0o700)  # nobody else reaches the files, whatever a restored backup gave them
        engine = connect(folder / EVENTS_FILE, _address(folder), for_requests=for_requests)
        try:
            need_current(engine)
            secret = _read_secret(folder, engine)
            on_sqlite, models = engine.dialect.name == "sqlite", folder / "models"
            store = ModelStore(models) if on_sqlite else DatabaseModelStore(models, engine)
            return cls(folder, config, audited(engine, secret), secret, store, PeopleStore(engine, secret))
        except BaseException:
            engine.dispose()
            raise

    @classmethod
    def upgrade(cls, folder: Path) -> bool:
        """Upgrade the tables of a workspace to this version; return whether they have changed."""
        LiveConfig.read(_require_workspace(folder))  # a mistake in the file is found first
        with _disposing(connect(folder / EVENTS_FILE, _address(folder))) as engine:
            before = revision(engine)
            upgrade(engine)
            _read_secret(folder, engine)
            return before != revision(engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.dispose()

    def check_files(self) -> None:
        """Read every page of a SQLite database; raise if one is damaged. PostgreSQL has checksums."""
        if self.engine.dialect.name != "sqlite":
            return
        for name in (EVENTS_FILE, PEOPLE_FILE):
            with closing(sqlite3.connect(uri_of(self.folder / name, is_read_only=True), uri=True)) as connection:
                try:
                    finding = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                except sqlite3.DatabaseError as error:
                    finding = str(error)
            if finding != "ok":
                raise WorkspaceError(
                    f"{self.folder / name} is damaged ({finding.splitlines()[-1]}); restore it from a backup"
                )

    @contextmanager
    def updating(self, wait_seconds: float = 0.0) -> Iterator[None]:
        """Hold the lock for changing models; raise an `UpdatingError` while another process holds it.

        The lock ends with the block, also when the process is killed.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            on_sqlite = self.engine.dialect.name == "sqlite"
            with file_lock(self.folder / _LOCK, wait=False) if on_sqlite else self._database_lock() as is_free:
                if is_free:
                    yield
                    return
            if time.monotonic() >= deadline:
                raise UpdatingError(f"{self.folder} is being updated by another process; wait until it has ended")
            time.sleep(0.1)

    @contextmanager
    def _database_lock(self) -> Iterator[bool]:
        """Hold a lock of PostgreSQL, which excludes other machines too, on a separate connection.

        Unlock before closing the connection: the server ends a closed connection's lock a moment later.
        """
        lock = f"{_UPDATING}, {OF_SCHEMA}"
        with reachable(self.engine):
            connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with connection:
            with reachable(self.engine):
                connection.detach()  # closed at the end instead of returned to the pool, and the lock with it
                is_free = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({lock})").scalar_one()
            try:
                yield bool(is_free)
            finally:
                if is_free:
                    with suppress(DBAPIError):  # the server is away, and the lock with it
                        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({lock})")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read."""
    replace_file(path, content)
    path.chmod(0o600)


def _require_workspace(folder: Path) -> Path:
    if not (folder / FILE).is_file():
        raise WorkspaceError(f"{folder} is not a workspace: there is no {FILE}; make one with `fairstream init`")
    return folder


def _new_secret(path: Path) -> bytes:
    """Write a random secret, or take that of the file which the environment names."""
    if (given := os.environ.get(_SECRET_FILE)) is None:
        secret = secrets.token_bytes(_SECRET_BYTES)
        write_private(path, secret)
    elif len(secret := Path(given).read_bytes()) < _SECRET_BYTES:
        raise WorkspaceError(f"{given} must hold at least {_SECRET_BYTES} random bytes, and holds {len(secret)}")
    return secret


def _read_secret(folder: Path, engine: Engine) -> bytes:
    """Read the secret and check it against the database, because a wrong one would hash every id differently."""
    path = Path(os.environ.get(_SECRET_FILE, folder / SECRET))
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise WorkspaceError(
            f"{path} cannot be read: {error.strerror}; no workspace opens without it, restore it from a backup"
        ) from None
    with reading(engine) as connection:
        digest = connection.scalar(select(secret_check.c.digest))
    if digest is None or not hmac.compare_digest(digest, _check_value(secret)):
        raise WorkspaceError(
            f"{path} must hold the secret that this workspace was made with, and holds another one of {len(secret)} "
            f"bytes; restore it from a backup or copy it from another machine of this workspace"
        )
    return secret


def _check_value(secret: bytes) -> str:
    return hmac.digest(secret, b"check value", "sha256").hex()


def _address(folder: Path) -> str | None:
    """Return the address of PostgreSQL, None for SQLite; the environment takes precedence over the file."""
    if (folder / EVENTS_FILE).exists():
        return None
    written = read_text(folder / _DATABASE) if (folder / _DATABASE).exists() else None
    variable = os.environ.get("FAIRSTREAM_DATABASE")
    if variable is None or written is None:
        return variable or written
    url, schema = make_url(variable), make_url(written).query.get("schema")
    if schema is not None and "schema" not in url.query:  # that database may hold several workspaces
        url = url.update_query_dict({"schema": str(schema)})
    return url.render_as_string(hide_password=False)


@contextmanager
def new_database(folder: Path, database: str | None) -> Iterator[Engine]:
    """Make the tables of a new workspace in its folder or, at an address, in an empty database."""
    with _disposing(connect(folder / EVENTS_FILE, database)) as engine:
        if database is None:
            for name in (EVENTS_FILE, PEOPLE_FILE):
                (folder / name).touch(mode=0o600)  # SQLite gives its other files the mode of this one
        if (current := revision(engine)) is not None:  # a killed `init` or `restore` leaves tables without content
            with engine.connect() as connection:
                if current != latest_revision() or connection.scalar(select(secret_check.c.id)) is not None:
                    raise WorkspaceError("the database holds a workspace already; give an empty one, or --schema NAME")
        upgrade(engine)
        if database is not None:
            write_private(folder / _DATABASE, database.encode())
        yield engine


@contextmanager
def _disposing(engine: Engine) -> Iterator[Engine]:
    try:
        with reachable(engine):
            yield engine
    finally:
        engine.dispose()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder whose files move into a new or empty one when the block succeeds."""
    if (existed := folder.exists()) and any(folder.iterdir()):
        raise WorkspaceError(f"{folder} is not empty; give the name of a folder that does not exist yet")
    # A mounted volume cannot be replaced, and the folder that contains it may be read-only.
    with sibling_tempdir(folder / FILE if existed else folder, "new") as temporary:
        (new := temporary / "new").mkdir(mode=0o700)
        yield new
        folder.mkdir(mode=0o700, exist_ok=True)
        for part in sorted(new.iterdir(), key=lambda part: part.name == FILE):  # without it, it is no workspace
            part.replace(folder / part.name)
