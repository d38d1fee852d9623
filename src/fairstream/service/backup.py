"""Back up a workspace into one file, and restore it, on either database.

The file is a tar, compressed by Zstandard: `backup.json` with the format, the configuration, the secret, the files of
the models, the tables as parts in Arrow's format, and last `checksums.json`, without which nothing is restored.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from fairstream._version import __version__
from fairstream.errors import CheckpointError, WorkspaceError
from fairstream.files import sibling_tempdir
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import insert_rows, latest_revision, reachable, select_parts, writing
from fairstream.service.forgetting import FORGOTTEN_LOG, apply_forgotten, forgotten_list
from fairstream.service.model_store import insert_files
from fairstream.service.settings import FILE
from fairstream.service.workspace import SECRET, Workspace, new_database, new_folder, write_private

FORMAT = 1
_SUFFIX, _COMPRESSION = ".tar.zst", "zstd"
_HEAD, _SUMS = "backup.json", "checksums.json"
_TABLES = {
    table.name: table
    for table in (*schema.metadata.sorted_tables, schema.attributes)
    if table is not schema.model_files  # the files themselves are in the backup
}
_NUMBERED = [name for name, table in _TABLES.items() if table.autoincrement_column is not None]  # by `seq`


@dataclass(frozen=True)
class Contents:
    """What a backup holds."""

    created: str
    n_events: int
    models: tuple[str, ...]


def backup(workspace: Workspace, path: Path) -> Contents:
    """Write a backup, which holds every event that was acknowledged before; the service may run."""
    if not path.name.endswith(_SUFFIX):
        raise WorkspaceError(f"a backup is named FILE{_SUFFIX}, got {path.name}")
    if path.exists():
        raise WorkspaceError(f"{path} exists already; give another name")
    created = datetime.now(UTC).isoformat(timespec="seconds")
    head = {"format": FORMAT, "fairstream": __version__, "revision": latest_revision(), "created": created}
    with reachable(workspace.engine), sibling_tempdir(path, "tmp") as folder:
        (new := folder / "new").touch(mode=0o600)
        with pa.CompressedOutputStream(str(new), _COMPRESSION) as file, tarfile.open(mode="w|", fileobj=file) as tar:
            writer = _Writer(tar)
            with _snapshot(workspace.engine) as connection:
                writer.add(_HEAD, _json({**head, "sequences": _sequences(connection)}))
                writer.add(FILE, (workspace.folder / FILE).read_bytes())
                writer.add(SECRET, workspace.secret)
                models = tuple(_add_models(workspace, connection, writer))
                counts = {table.name: _add_table(connection, table, writer) for table in _TABLES.values()}
            writer.add(_SUMS, _json(writer.sums))
        with new.open("rb") as written:
            os.fsync(written.fileno())
        new.replace(path)
    return Contents(created, counts[schema.events.name], models)


def restore(path: Path, folder: Path, forgotten: str | None, *, database: str | None = None, by: str) -> Contents:
    """Make a workspace of a backup in a new folder and, if an address is given, an empty database.

    `forgotten` lists who was forgotten since, as `apply_forgotten` takes it; they are forgotten again before the
    workspace opens.
    """
    try:
        with new_folder(folder) as new:
            with (
                pa.input_stream(str(path), compression=_COMPRESSION) as file,
                tarfile.open(mode="r|", fileobj=file) as tar,
            ):
                contents = _restore(_files(tar), new, database)
            with Workspace.open(new) as workspace:
                with writing(workspace.engine) as connection:
                    record(connection, "restore", {"backup": contents.created, "by": by})
                if forgotten is not None:
                    apply_forgotten(workspace, forgotten, by=by)
                write_private(new / FORGOTTEN_LOG, (forgotten_list(workspace) + "\n").encode())
        return contents
    except (OSError, tarfile.TarError, pa.ArrowInvalid, ValueError, KeyError) as error:
        raise WorkspaceError(f"{path} cannot be restored: {error}") from None


class _Writer:
    """Adds files to a tar, and notes their checksums."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar, self.sums = tar, dict[str, str]()

    def add(self, name: str, content: Any) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), 0o600
        self._tar.addfile(info, io.BytesIO(content))
        self.sums[name] = hashlib.sha256(content).hexdigest()


def _files(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a tar; the last one must hold the checksums of the others."""
    sums = dict[str, str]()
    for info in tar:
        file = tar.extractfile(info)
        content = b"" if file is None else file.read()
        if info.name == _SUMS:
            if json.loads(content) != sums:
                raise WorkspaceError("the backup is damaged: a file in it is not what was written")
            return
        sums[info.name] = hashlib.sha256(content).hexdigest()
        yield info.name, content
    raise WorkspaceError("the backup is not complete: its end is missing")


def _restore(files: Iterator[tuple[str, bytes]], folder: Path, database: str | None) -> Contents:
    head = _checked_head(*next(files, ("", b"")))
    n_rows, models = Counter[str](), set[Path]()
    with new_database(folder, database) as engine, writing(engine) as connection:  # everything or nothing
        for name, content in files:
            path = folder / name
            if name.startswith("tables/"):
                table = _TABLES[path.parent.name]
                n_rows[table.name] += _insert(connection, table, pa.ipc.open_stream(content).read_all())
                continue
            if name.startswith("models/"):
                models.add(path.parent)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, content)
        if database is not None:
            for model in models:
                insert_files(connection, model.name, model)
        _set_sequences(connection, head["sequences"])
    return Contents(head["created"], n_rows[schema.events.name], tuple(sorted(model.name for model in models)))


def _checked_head(name: str, content: bytes) -> dict[str, Any]:
    head = json.loads(content) if name == _HEAD else {}
    if head.get("format", FORMAT) > FORMAT or head.get("revision", "") > latest_revision():
        raise WorkspaceError(
            f"this backup was written by fairstream {head['fairstream']}, which is newer than this version "
            f"({__version__}); restore it with that version"
        )
    if head.get("format") != FORMAT or head.get("revision") != latest_revision():
        raise WorkspaceError("this is not a backup that this version of fairstream can read")
    return head


@contextmanager
def _snapshot(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that sees the database as it is now, whatever others write meanwhile."""
    options = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
    with engine.connect().execution_options(**options) as connection, connection.begin():
        if options:  # compressing a large part takes longer than a transaction may idle
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield connection


def _add_table(connection: sa.Connection, table: sa.Table, writer: _Writer) -> int:
    """Write a table in parts; return the number of its rows."""
    n_rows, query = 0, sa.select(*map(_as_stored, table.c)).order_by(*table.primary_key)
    for part, rows in enumerate(select_parts(connection, query)):
        memory = pa.BufferOutputStream()
        with pa.ipc.new_stream(memory, rows.schema) as stream:
            stream.write_batch(rows)
        writer.add(f"tables/{table.name}/{part:06}.arrow", memory.getvalue())
        n_rows += len(rows)
    return n_rows


def _as_stored(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return a column in the one form that both databases read: truth values as numbers, JSON as text."""
    kind = {sa.Boolean: sa.Integer, sa.JSON: sa.Text}.get(type(column.type))
    return column if kind is None else sa.cast(column, kind).label(column.name)


def _insert(connection: sa.Connection, table: sa.Table, rows: pa.Table) -> int:
    insert_rows(connection, table, rows)
    if table is schema.events and connection.dialect.name == "sqlite":
        insert_rows(connection, schema.events_of_user, rows.select(["user_id", "seq"]))
    return len(rows)


def _add_models(workspace: Workspace, connection: sa.Connection, writer: _Writer) -> Iterator[str]:
    """Write the models that the snapshot knows; yield their folders."""
    known = set(connection.scalars(sa.select(schema.models.c.folder)))
    serving = connection.scalar(
        sa.select(schema.models.c.folder).join(schema.service, schema.service.c.model == schema.models.c.id)
    )
    for folder in sorted(known & workspace.models.names()):
        try:
            files = {file.name: file.read_bytes() for file in workspace.models.path(folder).iterdir()}
        except (CheckpointError, FileNotFoundError):  # an update has removed it meanwhile
            files = {}
        if not files and folder == serving:
            raise WorkspaceError("the model in service was replaced during the backup; try again")
        for name, content in files.items():
            writer.add(f"models/{folder}/{name}", content)
        if files:
            yield folder


def _sequences(connection: sa.Connection) -> dict[str, int]:
    """The last number of each table that numbers its rows: none is given twice, although rows are deleted."""
    if connection.dialect.name == "sqlite":
        return {row.name: row.seq for row in connection.exec_driver_sql("SELECT name, seq FROM sqlite_sequence")}
    lasts = {name: f"SELECT last_value FROM {name}_seq_seq" for name in _NUMBERED}  # noqa: S608
    return {name: connection.exec_driver_sql(query).scalar_one() for name, query in lasts.items()}


def _set_sequences(connection: sa.Connection, sequences: Mapping[str, int]) -> None:
    for name, last in sequences.items():
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
            connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, last))
        else:
            connection.exec_driver_sql(f"SELECT setval('{name}_seq_seq', {last})")


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
