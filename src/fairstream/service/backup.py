"""Back up a workspace into one file, and restore it, on either database.

The file is a tar, compressed by Zstandard: `backup.json` with the format, the tables as Arrow parts of one transaction,
the models' files, the configuration, the secret, and last `checksums.json`, without which nothing is restored.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from fairstream._version import __version__
from fairstream.errors import CheckpointError, FairstreamError, WorkspaceError
from fairstream.files import sibling_tempdir
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import (
    PEOPLE_FILE,
    connect,
    copy_rows,
    insert_new,
    latest_revision,
    people_schema,
    reachable,
    select_rows,
    writing,
)
from fairstream.service.forgetting import FORGOTTEN_LOG, apply_forgotten, forgotten_list
from fairstream.service.settings import FILE
from fairstream.service.workspace import SECRET, Workspace, check_empty, new_database, write_private

FORMAT = 1
_SUFFIX, _COMPRESSION = ".tar.zst", "zstd"
_HEAD, _SUMS = "backup.json", "checksums.json"
_PART_ROWS = 200_000
_ARROW: tuple[tuple[type[Any], pa.DataType], ...] = (
    (sa.Boolean, pa.bool_()),
    (sa.Float, pa.float64()),
    (sa.Integer, pa.int64()),
    (sa.JSON, pa.string()),
    (sa.String, pa.string()),
)
_TABLES = {table.name: table for table in schema.metadata.sorted_tables if table is not schema.model_files}
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
                models = tuple(_add_models(workspace, connection, writer))
                tables = [table for table in _TABLES.values() if table.schema is None]
                counts = {table.name: _add_table(connection, table, writer) for table in tables}
            with workspace.people() as people, _snapshot(people.engine) as connection:
                _add_table(connection, schema.attributes, writer)
            writer.add(FILE, (workspace.folder / FILE).read_bytes())
            writer.add(SECRET, workspace.secret)
            writer.add(_SUMS, _json(writer.sums))
        with new.open("rb") as written:
            os.fsync(written.fileno())
        new.replace(path)
    return Contents(created, counts[schema.events.name], models)


def restore(path: Path, folder: Path, forgotten: str | None, *, database: str | None = None, by: str) -> Contents:
    """Make a workspace of a backup in a new folder and, if an address is given, an empty database.

    `forgotten` lists who was forgotten since, a JSON object on each line; they are forgotten again before the
    workspace opens.
    """
    check_empty(folder)
    with _as_sentence(path), sibling_tempdir(folder, "restored") as temporary:
        (made := temporary / "new").mkdir(mode=0o700)
        (models := temporary / "models").mkdir()
        with (
            pa.input_stream(str(path), compression=_COMPRESSION) as file,
            tarfile.open(mode="r|", fileobj=file) as tar,
        ):
            contents = _restore(_files(tar), made, models, database)
        with Workspace.open(made) as workspace:
            for model in models.iterdir():
                with workspace.models.new(model.name) as new:
                    for part in model.iterdir():
                        part.replace(new / part.name)
            with writing(workspace.engine) as connection:
                record(connection, "restore", {"backup": contents.created, "by": by})
            for line in (forgotten or "").split():  # each is JSON without blanks
                apply_forgotten(workspace, line, by=by)
            write_private(made / FORGOTTEN_LOG, (forgotten_list(workspace) + "\n").encode())
        made.replace(folder)
    return contents


def forgotten_since(place: Path) -> str:
    """Return who was forgotten by a list of `fairstream forget --hashes`, or by the folder of the workspace."""
    if not place.is_dir():
        try:
            return place.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise WorkspaceError(f"{place} cannot be read: {error}") from None
    log = place / FORGOTTEN_LOG
    lines = [log.read_text()] if log.exists() else []
    try:
        with Workspace.open(place) as workspace, reachable(workspace.engine):
            lines.append(forgotten_list(workspace))
    except (FairstreamError, OSError):
        if not lines:
            raise
    return "\n".join(lines)


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


def _restore(files: Iterator[tuple[str, bytes]], folder: Path, models: Path, database: str | None) -> Contents:
    head = _checked_head(*next(files, ("", b"")))
    with ExitStack() as stack:
        engine = stack.enter_context(new_database(folder, database))
        connection = of_people = stack.enter_context(writing(engine))  # one transaction: everything or nothing
        if database is None:
            people = connect(folder / PEOPLE_FILE)
            stack.callback(people.dispose)
            of_people = stack.enter_context(writing(people))
        counts, others = dict.fromkeys(_TABLES, 0), dict[str, bytes]()
        for name, content in files:
            kind, _, rest = name.partition("/")
            if kind == "tables":
                table = _TABLES[rest.partition("/")[0]]
                target = connection if table.schema is None else of_people
                counts[table.name] += _insert(target, table, pa.ipc.open_stream(content).read_all())
            elif kind == "models":
                (models / rest).parent.mkdir(exist_ok=True)
                (models / rest).write_bytes(content)
            else:
                others[name] = content
        _set_sequences(connection, head["sequences"])
    for name in (SECRET, FILE):
        write_private(folder / name, others[name])
    return Contents(head["created"], counts["events"], tuple(sorted(model.name for model in models.iterdir())))


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
def _as_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, tarfile.TarError, pa.ArrowInvalid, ValueError, KeyError) as error:
        raise WorkspaceError(f"{path} cannot be restored: {error}") from None


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
    columns = pa.schema([(column.name, _arrow_type(column)) for column in table.c])
    n_rows = 0
    for part, query in enumerate(_queries(connection, table)):
        rows = select_rows(connection, query, columns)
        memory = pa.BufferOutputStream()
        with pa.ipc.new_stream(memory, columns) as stream:
            stream.write_table(rows)
        writer.add(f"tables/{table.name}/{part:06}.arrow", memory.getvalue())
        n_rows += len(rows)
    return n_rows


def _queries(connection: sa.Connection, table: sa.Table) -> Iterator[str]:
    """Yield the statements that read a table; one that grows without end is read in parts."""
    name, names = _name(connection, table), ", ".join(column.name for column in table.c)
    select, order = f"SELECT {names} FROM {name}", ", ".join(column.name for column in table.primary_key)  # noqa: S608
    if order != "seq":
        yield f"{select} ORDER BY {order}"
        return
    last = connection.exec_driver_sql(f"SELECT max(seq) FROM {name}").scalar() or 0  # noqa: S608
    for start in range(0, last, _PART_ROWS):
        yield f"{select} WHERE seq > {start} AND seq <= {start + _PART_ROWS} ORDER BY seq"


def _insert(connection: sa.Connection, table: sa.Table, rows: pa.Table) -> int:
    on_postgres = connection.dialect.name == "postgresql"
    (copy_rows if on_postgres else insert_new)(connection, _name(connection, table), rows)
    if table is schema.events and not on_postgres:
        insert_new(connection, schema.events_of_user.name, rows.select(["user_id", "seq"]))
    return len(rows)


def _name(connection: sa.Connection, table: sa.Table) -> str:
    where = None if table.schema is None else people_schema(connection)
    return table.name if where is None else f"{where}.{table.name}"


def _arrow_type(column: sa.Column[Any]) -> pa.DataType:
    return next(arrow for kind, arrow in _ARROW if isinstance(column.type, kind))


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
