"""Forget people: events, attributes and rows, in every table and every model.

A request is one short transaction: it deletes the person's rows, and a replay does not bring them back. Completing it
takes the lock for updating: it removes the attribute, rewrites every model that knows the person under another name,
and switches to the new models in one transaction. If the process is killed, the model in service is whole and the
request stays pending.

A keyed hash of the id and a time remain: later events are those of a new person.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from sqlalchemy import ColumnElement, Dialect, Engine, Table, delete, func, insert, select, update

from fairstream.errors import CheckpointError, DataError, FairstreamError, WorkspaceError
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import EVENTS_FILE, PEOPLE_FILE, bump, canonical, now, read_text, reading, writing
from fairstream.service.event_store import one_writer
from fairstream.service.model_store import folder_hash
from fairstream.service.people import digests, in_parts
from fairstream.service.records import Model, Record, Time, UnknownIdError, from_microseconds
from fairstream.service.registry import deciding, tidy
from fairstream.service.workspace import Workspace

FORGOTTEN_LOG = "forgotten.log"  # who was forgotten, as hashes, in the workspace's folder
_requests = schema.forgotten
_TABLES = [table for table in schema.metadata.sorted_tables if "user_id" in table.c and table is not _requests]
"""The tables with ids of people, apart from the groups."""


class Request(Record):
    """A request to forget a person."""

    id: str = Field(examples=["5b7c9d21e0f43a68"])
    """Id of the request."""
    requested: Time
    """When it was requested."""
    completed: Time | None
    """When the attribute and every model were without the person; null before."""


@dataclass(frozen=True)
class Forgotten:
    """What was removed."""

    n_users: int
    n_events: int = 0
    n_attributes: int = 0
    models: tuple[str, ...] = ()  # the models that knew one of them and were rewritten
    damaged: tuple[str, ...] = ()  # the models that could not be read, and whose files were removed


def request_forget(workspace: Workspace, user_ids: Iterable[str], *, by: str) -> int:
    """Delete the events of users and let no replay bring them back, in one transaction; return how many there were."""
    return _request(workspace, list(dict.fromkeys(user_ids)), {}, by)


def forget(workspace: Workspace, user_ids: Iterable[str], *, by: str) -> Forgotten:
    """Remove people from every table and every model; a `WorkspaceError` means that completing must wait."""
    n_events = request_forget(workspace, user_ids, by=by)
    with workspace.updating():
        return replace(complete_forgetting(workspace), n_events=n_events)


def complete_forgetting(workspace: Workspace) -> Forgotten:
    """Complete all requests; the caller holds the lock for updating."""
    tidy(workspace)
    pending = select(_requests.c.digest, _requests.c.user_id).where(_requests.c.completed.is_(None))
    with reading(workspace.engine) as connection:
        names = dict(connection.execute(pending).all())
    removed = _complete(workspace, names) if names else Forgotten(0)
    _empty_logs(workspace)  # also if nothing is pending: a process may have been killed
    return removed


def _complete(workspace: Workspace, names: Mapping[str, str]) -> Forgotten:
    n_attributes = workspace.people.remove(names.values())
    rewritten, damaged = _rewrite_models(workspace, names.values())
    with writing(workspace.engine) as connection:
        for part in in_parts(list(names.values())):  # an update that has read the events may have stored tests
            connection.execute(delete(schema.tested_users).where(schema.tested_users.c.user_id.in_(part)))
        for part in in_parts(list(names)):
            completed = update(_requests).where(_requests.c.digest.in_(part))
            connection.execute(completed.values(user_id=None, completed=now()))
        record(connection, "forgotten", {"users": sorted(names), "models": rewritten, "damaged": damaged})
    return Forgotten(len(names), 0, n_attributes, tuple(rewritten), tuple(damaged))


def request_id(workspace: Workspace, user_id: str) -> str:
    """Return the id of the request to forget a person, which does not reveal who it is."""
    return digests(workspace.secret, [user_id])[0]


def get_request(engine: Engine, id_: str) -> Request:
    """Return the last request with an id of `request_id`."""
    with reading(engine) as connection:
        row = connection.execute(select(_requests).where(_requests.c.digest == id_)).mappings().first()
    if row is None:
        raise UnknownIdError(f"there is no request to forget somebody with the id {id_[:64]!r}")
    return Request(id=row["digest"], requested=row["requested"], completed=row["completed"])


def pending_requests(engine: Engine) -> tuple[int, int | None]:
    """Return how many requests are not completed, and the time of the oldest one."""
    query = select(func.count(), func.min(_requests.c.requested)).where(_requests.c.completed.is_(None))
    with reading(engine) as connection:
        n, oldest = connection.execute(query).one()
    return n, oldest


def known(workspace: Workspace, user_ids: Collection[str]) -> set[str]:
    """Return the ids about which something is stored."""
    stored: set[str] = set()
    with reading(workspace.engine) as connection:
        for part in in_parts(list(user_ids)):
            for table in _TABLES:
                theirs = _of_users(table, connection.dialect, part)
                stored.update(connection.scalars(select(table.c.user_id).where(theirs).distinct()))
    stored.update(workspace.people.values_of(user_ids))
    return stored.union(*(ids or () for _, ids in _known_to_models(workspace, user_ids)))


def export(workspace: Workspace, user_id: str) -> dict[str, Any] | None:
    """Return all rows, the group and the models that know a person; None where there is nothing."""
    document: dict[str, Any] = {"user_id": user_id}
    with reading(workspace.engine) as connection:
        for table in _TABLES:
            columns = [column for column in table.c if column.name not in ("user_id", "seq")]
            query = select(*columns).where(_of_users(table, connection.dialect, [user_id]))
            rows = [dict(row) for row in connection.execute(query.order_by(*table.primary_key)).mappings()]
            document[table.name] = rows
            for row in rows if "time" in table.c else ():
                row["time"] = from_microseconds(row["time"]).isoformat()
    value = workspace.people.values_of([user_id]).get(user_id)
    document["attribute"] = {} if value is None else {workspace.config.group: value}
    document["models"] = [model.id for model, ids in _known_to_models(workspace, [user_id]) if ids]
    return document if any(list(document.values())[1:]) else None


def forgotten_list(workspace: Workspace) -> str:
    """Return who was forgotten, as hashes, for `apply_forgotten` in a restored backup."""
    query = select(_requests.c.digest, _requests.c.until).order_by(_requests.c.digest)
    with reading(workspace.engine) as connection:
        return _as_line(workspace, [tuple(row) for row in connection.execute(query)])


def forgotten_since(place: Path) -> str:
    """Return who was forgotten by a `forgotten.log`, or by the folder of a workspace."""
    if not place.is_dir():
        return read_text(place)
    lines = [read_text(log)] if (log := place / FORGOTTEN_LOG).exists() else []
    try:
        with Workspace.open(place) as workspace:
            lines.append(forgotten_list(workspace))
    except FairstreamError:  # the database is lost: every request on this machine is in the log
        if not lines:
            raise
    return "\n".join(lines)


def apply_forgotten(workspace: Workspace, lines: str, *, by: str) -> Forgotten:
    """Forget the people of a list again who are back in a restored backup."""
    listed = dict[str, int]()
    try:
        for document in map(json.loads, lines.splitlines()):
            if document["workspace"] != _mark(workspace):
                raise WorkspaceError("this list of forgotten people is of another workspace: it has another secret")
            for digest, until in document["forgotten"]:
                listed[digest] = max(int(until), listed.get(digest, 0))
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"this must be a list of forgotten people, such as the {FORGOTTEN_LOG} of a workspace"
        ) from None
    with reading(workspace.engine) as connection:
        applied = dict(connection.execute(select(_requests.c.digest, _requests.c.until)).all())
    missing = {digest: until for digest, until in listed.items() if applied.get(digest, -1) < until}
    if not missing:
        return Forgotten(0)
    everybody = list(_everybody(workspace))
    names = [
        name for digest, name in zip(digests(workspace.secret, everybody), everybody, strict=True) if digest in missing
    ]
    n_events = _request(workspace, names, missing, by)
    with workspace.updating():
        return replace(complete_forgetting(workspace), n_users=len(missing), n_events=n_events)


def _request(workspace: Workspace, names: list[str], listed: Mapping[str, int], by: str) -> int:
    """Store requests: of people by name, and of people on a list, whose times stay and whose names may be unknown."""
    latest, n_events, moment = dict[str, int](), 0, now()
    name_of = dict(zip(digests(workspace.secret, names), names, strict=True))
    users = sorted({*name_of, *listed})
    with writing(workspace.engine) as connection:
        one_writer(connection)  # others that store events now have read the forgotten users before
        for part in in_parts(names):
            theirs = schema.of_users(connection.dialect, part)
            times = select(schema.events.c.user_id, func.max(schema.events.c.time)).where(theirs)
            latest |= dict(connection.execute(times.group_by(schema.events.c.user_id)).all())
            for table in _TABLES:
                n = connection.execute(delete(table).where(_of_users(table, connection.dialect, part))).rowcount
                n_events += n if table is schema.events else 0
        for part in in_parts(users):
            connection.execute(delete(_requests).where(_requests.c.digest.in_(part)))
        rows: list[dict[str, Any]] = [
            {
                "digest": digest,
                "user_id": (name := name_of.get(digest)),
                "until": listed.get(digest) or max(moment, latest.get(str(name), 0)),
                "requested": moment,
                "completed": moment if name is None else None,
            }
            for digest in users
        ]
        connection.execute(insert(_requests), rows)
        bump(connection, "forgotten")
        record(connection, "forget", {"users": users, "n_events": n_events, "by": by})
        _log(workspace, _as_line(workspace, [(row["digest"], row["until"]) for row in rows]))
    return n_events


def _as_line(workspace: Workspace, rows: Collection[tuple[str, int]]) -> str:
    return canonical({"workspace": _mark(workspace), "forgotten": rows})


def _log(workspace: Workspace, line: str) -> None:
    """Note beside the database who is forgotten, so that an older backup does not bring them back."""
    content = f"{line}\n".encode()
    handle = os.open(workspace.folder / FORGOTTEN_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "wb", buffering=0) as file:
        size = os.fstat(handle).st_size
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(workspace.folder / FORGOTTEN_LOG))
            os.fsync(handle)
        except OSError:
            file.truncate(size)  # nobody could read what follows half a line
            raise


def _rewrite_models(workspace: Workspace, user_ids: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Rewrite each model that knows one of them, and switch to all new ones at once; return the hashes of files."""
    values, folders, hashes, damaged, old = None, dict[str, str](), dict[str, str](), list[str](), list[str]()
    for row, gone in _known_to_models(workspace, user_ids):
        if gone == []:
            continue
        old.append(row.folder)
        from fairstream.recommender import load  # noqa: PLC0415 (PyTorch, which no other part of it needs)

        try:
            model = load(workspace.models.path(row.folder), device="cpu")
        except CheckpointError:
            damaged.append(row.id)
            continue
        # What is counted with weights by group is counted again; values that are no group of the model stay unknown.
        values, groups = workspace.people.values() if values is None else values, model.state.groups
        of_groups = values.filter(pc.is_in(values["value"], value_set=pa.array(groups.names, pa.string())))
        model.set_groups(of_groups.rename_columns(["user_id", groups.attribute]))
        model.forget(gone or ())
        name, _, n = row.folder.partition(".")
        folders[row.id] = f"{name}.{int(n or 0) + 1}"  # ID, ID.1, ID.2, …
        with workspace.models.new(folders[row.id]) as fresh:
            model.save(fresh, with_groups=False)
            hashes[row.id] = folder_hash(fresh)
    if old:
        with deciding(workspace.engine) as (connection, current):
            for model_id, folder in folders.items():
                connection.execute(update(schema.models).where(schema.models.c.id == model_id).values(folder=folder))
            if current in damaged:
                # By the new time a process with the model in memory sees that it must read another one. A model that
                # was rewritten has a new folder, and has been in service since it was promoted.
                connection.execute(update(schema.service).values(since=now()))
        workspace.models.remove(old)
    return hashes, damaged


def _known_to_models(workspace: Workspace, user_ids: Collection[str]) -> Iterator[tuple[Model, list[str] | None]]:
    """Yield each kept model with those of the users whom it knows; None if its ids cannot be read."""
    wanted = pa.array(user_ids, pa.large_string())
    for row, ids in _users_of_models(workspace):
        yield row, None if ids is None else ids.filter(pc.is_in(ids, value_set=wanted)).to_pylist()


def _users_of_models(workspace: Workspace) -> Iterator[tuple[Model, pa.Array | None]]:
    from fairstream.recommender.checkpoint import read_user_ids  # noqa: PLC0415 (PyTorch)

    names = workspace.models.names()
    with reading(workspace.engine) as connection:
        rows = connection.execute(select(schema.models).where(schema.models.c.folder.in_(names))).mappings().all()
    for row in rows:
        try:
            ids = read_user_ids(workspace.models.path(row["folder"]))
        except CheckpointError:
            ids = None
        yield Model(**row), ids


def _everybody(workspace: Workspace) -> set[str]:
    """Return every id that is stored anywhere."""
    stored: set[str] = set()
    with reading(workspace.engine) as connection:
        for table in _TABLES:
            stored.update(connection.scalars(select(table.c.user_id).distinct()))
    stored.update(workspace.people.values()["user_id"].to_pylist())
    return stored.union(*(ids.to_pylist() for _, ids in _users_of_models(workspace) if ids is not None))


def _of_users(table: Table, dialect: Dialect, user_ids: Collection[str]) -> ColumnElement[bool]:
    return schema.of_users(dialect, user_ids) if table is schema.events else table.c.user_id.in_(user_ids)


def _mark(workspace: Workspace) -> str:
    return digests(workspace.secret, ["list of forgotten people"])[0]


def _empty_logs(workspace: Workspace) -> None:
    """Empty SQLite's write-ahead logs, which hold old pages, unless somebody uses them now.

    SQLite overwrites deleted rows (`secure_delete`), and the log with the commits that follow.
    """
    for file in (EVENTS_FILE, PEOPLE_FILE) if workspace.engine.dialect.name == "sqlite" else ():
        # It waits for nobody: it must not keep writers of events waiting.
        with closing(sqlite3.connect(workspace.folder / file, timeout=0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
