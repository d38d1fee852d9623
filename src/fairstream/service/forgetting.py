"""Forgetting people: events, attributes and rows, in every table and every model.

It has two phases. A request is one short transaction: the person's events are gone, and a replay does not bring
them back. Completing it takes minutes and the lock for updating: the attribute, then every model that knows the
person, which is written anew under another name and switched to in one transaction. Killed at any moment, the
model in service is whole and the request pending, and completing it again finishes the work.

What is left is a keyed hash of the id and a time: events after it are those of a new person.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, String, delete, func, insert, select, update

from fairstream.errors import CheckpointError
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import driver_of, now, reachable, writing
from fairstream.service.event_store import one_writer
from fairstream.service.people import PeopleStore, digests, in_parts
from fairstream.service.records import Model
from fairstream.service.registry import deciding, tidy
from fairstream.service.workspace import Workspace

if TYPE_CHECKING:
    from fairstream.recommender import FairRecommender

_SEARCHABLE_BYTES = 8
"""A shorter id is found in files by chance, so that looking for it proves nothing."""
_MAX_SEARCHED = 100


@dataclass(frozen=True)
class Request:
    """What a request to forget has done at once."""

    requested: tuple[str, ...]
    unknown: tuple[str, ...]
    """Users without events; only whoever completes requests can see whether an attribute or a model is theirs."""
    n_events: int


@dataclass(frozen=True)
class Forgotten:
    """What was removed, and what was found on looking for it again."""

    n_users: int
    n_events: int
    n_attributes: int
    models: tuple[str, ...]
    """The models that knew somebody and were written anew."""
    damaged: tuple[str, ...]
    """The models that could not be read, so that nobody can say whom they know; their files were removed."""
    unknown: tuple[str, ...]
    """Users of whom there is nothing; nothing was written of them."""
    problems: tuple[str, ...]
    """What is not removed for good yet, in sentences; the requests stay pending."""


def request_forget(
    workspace: Workspace, user_ids: Iterable[str], *, by: str, known: Collection[str] = frozenset()
) -> Request:
    """Delete the events of users and let no replay bring them back, in one transaction.

    `known` names users that are to be forgotten even if they have no events.
    """
    wanted = list(dict.fromkeys(user_ids))
    with reachable(workspace.engine), writing(workspace.engine) as connection:
        one_writer(connection)  # who stores events meanwhile has asked before who was forgotten
        latest: dict[str, int] = {}
        for part in in_parts(wanted):
            found = select(schema.events.c.user_id, func.max(schema.events.c.time))
            rows = connection.execute(
                found.where(schema.of_users(connection.dialect, part)).group_by(schema.events.c.user_id)
            )
            latest |= dict(rows.all())
        requested = [user_id for user_id in wanted if user_id in latest or user_id in known]
        if not requested:
            return Request((), tuple(wanted), 0)
        n_events, moment, hashes = 0, now(), digests(workspace.secret, requested)
        for part in in_parts(requested):
            n_events += connection.execute(
                delete(schema.events).where(schema.of_users(connection.dialect, part))
            ).rowcount
        for part in in_parts(hashes):
            connection.execute(delete(schema.forgotten).where(schema.forgotten.c.digest.in_(part)))
        connection.execute(
            insert(schema.forgotten),
            [
                {"digest": digest, "until": max(moment, latest.get(user_id, 0)), "requested": moment, "completed": None}
                for digest, user_id in zip(hashes, requested, strict=True)
            ],
        )
        record(connection, "forget", {"users": hashes, "n_events": n_events, "by": by})
    unknown = tuple(user_id for user_id in wanted if user_id not in latest and user_id not in known)
    return Request(tuple(requested), unknown, n_events)


def forget(workspace: Workspace, user_ids: Iterable[str], *, by: str) -> Forgotten:
    """Remove people from every table and every model in one pass, and look whether it is so."""
    wanted = list(dict.fromkeys(user_ids))
    with workspace.updating():
        tidy(workspace)
        with workspace.people() as people:
            known = {*_Pending(workspace, wanted).names, *people.values(wanted)["user_id"].to_pylist()}
            request = request_forget(workspace, wanted, by=by, known=known)
            if request.unknown:  # their events may have been pruned, and models still know them
                known = {name for _, model in _models(workspace) if model for name in _known_to(model, request.unknown)}
                more = request_forget(workspace, request.unknown, by=by, known=known)
                n_events = request.n_events + more.n_events
                request = Request(request.requested + more.requested, more.unknown, n_events)
            return _complete(workspace, people, request)


def complete_forgetting(workspace: Workspace) -> Forgotten:
    """Finish what was requested; whoever holds the lock for updating calls this."""
    tidy(workspace)
    with workspace.people() as people:
        return _complete(workspace, people, Request((), (), 0))


def models_that_know(workspace: Workspace, user_id: str) -> list[str]:
    """The models among those kept that were made from events of a user."""
    return [row.id for row, model in _models(workspace) if model is not None and _known_to(model, [user_id])]


def n_pending(engine: Engine) -> int:
    """How many requests are not completed."""
    pending = select(func.count()).where(schema.forgotten.c.completed.is_(None))
    with reachable(engine), engine.connect() as connection:
        return connection.execute(pending).scalar_one()


def _complete(workspace: Workspace, people: PeopleStore, request: Request) -> Forgotten:
    pending = _Pending(workspace, request.requested)
    if not pending.digests:
        return Forgotten(0, 0, 0, (), (), request.unknown, ())
    everybody = people.values()
    n_attributes = people.remove(pending.among(everybody["user_id"].to_pylist()))
    rewritten, damaged = _rewrite_models(workspace, people, pending)
    _scrub(workspace.engine, schema.events.name)
    _scrub(people.engine, f"{schema.PEOPLE}.{schema.attributes.name}")
    problems = tuple(_problems(workspace, people, pending))
    with writing(workspace.engine) as connection:
        if not problems:
            for part in in_parts(pending.digests):
                these = schema.forgotten.c.digest.in_(part)
                connection.execute(update(schema.forgotten).where(these).values(completed=now()))
        entry = {"users": pending.digests, "models": rewritten, "damaged": damaged, "is_proved": not problems}
        record(connection, "forgotten", entry)
    return Forgotten(
        len(pending.digests),
        request.n_events,
        n_attributes,
        tuple(rewritten),
        tuple(damaged),
        request.unknown,
        problems,
    )


class _Pending:
    """Who is to be forgotten: known by a hash, and by name where somebody has said it or it was found."""

    def __init__(self, workspace: Workspace, user_ids: Collection[str]) -> None:
        self._secret = workspace.secret
        query = select(schema.forgotten.c.digest, schema.forgotten.c.until).where(
            schema.forgotten.c.completed.is_(None)
        )
        with reachable(workspace.engine), workspace.engine.connect() as connection:
            self.until = dict(connection.execute(query).all())
        self.digests = sorted(self.until)
        self._digest_of = dict(zip(user_ids, digests(self._secret, user_ids), strict=True))
        self.names = {name: digest for name, digest in self._digest_of.items() if digest in self.until}

    def among(self, user_ids: Collection[str]) -> list[str]:
        """Those of the users who are to be forgotten."""
        if len(self.names) < len(self.until):
            fresh = [user_id for user_id in user_ids if user_id not in self._digest_of]
            self._digest_of.update(zip(fresh, digests(self._secret, fresh), strict=True))
            self.names |= {name: self._digest_of[name] for name in fresh if self._digest_of[name] in self.until}
        return [user_id for user_id in user_ids if user_id in self.names]


def _rewrite_models(workspace: Workspace, people: PeopleStore, pending: _Pending) -> tuple[list[str], list[str]]:
    """Write each model that knows somebody anew, and switch to all of them at once."""
    values, folders, damaged, old = people.values(), {}, [], []
    for row, model in _models(workspace):
        if model is None:
            damaged.append(row.id)
        elif gone := pending.among(model.state.user_ids.ids.to_pylist()):
            # What is counted with weights by group is counted again.
            model.set_groups(values.rename_columns(["user_id", model.state.groups.attribute]))
            model.forget(gone)
            folders[row.id] = _next_folder(row.folder)
            with workspace.models.new(folders[row.id]) as fresh:
                model.save(fresh, with_groups=False)
        else:
            continue
        old.append(row.folder)
    if old:
        with deciding(workspace.engine) as (connection, _):
            for model_id, folder in folders.items():
                connection.execute(update(schema.models).where(schema.models.c.id == model_id).values(folder=folder))
            # Whoever has a model in memory sees by the new time that it must be read again.
            connection.execute(update(schema.service).values(since=now()))
    workspace.models.remove(old)
    return list(folders), damaged


def _models(workspace: Workspace) -> Iterator[tuple[Model, FairRecommender | None]]:
    """Each model that is kept, one at a time in memory; None for one whose files cannot be read."""
    there = workspace.models.names()
    with workspace.engine.connect() as connection:
        rows = connection.execute(select(schema.models).where(schema.models.c.folder.in_(there))).mappings().all()
    if rows:
        from fairstream.recommender import load  # noqa: PLC0415 (PyTorch, which no other part of it needs)
    for row in rows:
        model = Model.from_row(row)
        try:
            recommender = load(workspace.models.path(model.folder), device="cpu")
        except CheckpointError:
            recommender = None
        yield model, recommender


def _known_to(model: FairRecommender, user_ids: Collection[str]) -> list[str]:
    rows = model.state.user_ids.lookup(list(user_ids))
    return [user_id for user_id, row in zip(user_ids, rows, strict=True) if row >= 0]


def _next_folder(folder: str) -> str:
    """The name of the next version of a model's files: ID, ID.1, ID.2, …"""
    model, _, n = folder.partition(".")
    return f"{model}.{int(n or 0) + 1}"


def _scrub(engine: Engine, table: str) -> None:
    """Write the database's files anew without what deleted rows have left in them.

    PostgreSQL only frees their space: what its files, its write-ahead log and its backups hold is the server's.
    """
    with reachable(engine), engine.connect() as connection, driver_of(connection) as driver:
        if engine.dialect.name == "postgresql":
            driver.autocommit = True  # a vacuum is no part of a transaction
            driver.execute(f"VACUUM {table}")
            driver.autocommit = False
        else:
            driver.execute("VACUUM")


def _problems(workspace: Workspace, people: PeopleStore, pending: _Pending) -> Iterator[str]:
    """Look everywhere once more; a sentence for each thing that is left."""
    names = list(pending.names)
    back = set()
    with workspace.engine.connect() as connection:
        for part in in_parts(names):
            query = select(schema.events.c.user_id, func.min(schema.events.c.time)).group_by(schema.events.c.user_id)
            for user_id, time in connection.execute(query.where(schema.of_users(connection.dialect, part))):
                back.add(user_id)  # events after the forgetting are those of a new person
                if time <= pending.until[pending.names[user_id]]:
                    yield "events of a forgotten user have come in meanwhile"
    if set(people.values(names)["user_id"].to_pylist()) - back:
        yield "an attribute of a forgotten user has come in meanwhile"
    for row, model in _models(workspace):
        if model is None or _known_to(model, names):
            yield f"model {row.id} cannot be read, or still knows a forgotten user"
    if workspace.engine.dialect.name == "sqlite":
        for engine in (workspace.engine, people.engine):
            yield from _left_in_log(engine)
    searched = [name for name in names if len(name.encode()) >= _SEARCHABLE_BYTES and name not in back]
    yield from _left_in_files(workspace, searched[:_MAX_SEARCHED])


def _left_in_log(engine: Engine) -> Iterator[str]:
    """Empty the write-ahead log of a SQLite file, which holds old pages until it is."""
    file = Path(str(engine.url.database))
    with reachable(engine), engine.connect() as connection, driver_of(connection) as driver:
        is_busy, *_ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    log = file.with_name(f"{file.name}-wal")
    if is_busy or (log.exists() and log.stat().st_size):
        yield f"another process reads {file.name}, so that its write-ahead log could not be emptied"


def _left_in_files(workspace: Workspace, user_ids: Collection[str]) -> Iterator[str]:
    """Search the bytes of the workspace's files for ids that stand in no row of a table."""
    for path in workspace.folder.rglob("*"):
        if not path.is_file() or not path.stat().st_size:
            continue
        found = _held_in(path, user_ids)
        with workspace.engine.connect() as connection:
            if not all(_is_in_a_row(connection, user_id) for user_id in found):
                yield f"the id of a forgotten user still stands in {path.relative_to(workspace.folder)}"


def _is_in_a_row(connection: Connection, user_id: str) -> bool:
    """Whether an id is part of another text, such as the id of an item or the name of a key."""
    for table in (schema.events, schema.items, schema.updates, schema.keys, schema.audit, schema.models):
        for column in (column for column in table.columns if isinstance(column.type, String)):
            place = select(column).where(column.contains(user_id, autoescape=True)).limit(1)
            if connection.execute(place).first() is not None:
                return True
    return False


def _held_in(path: Path, user_ids: Collection[str]) -> list[str]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [user_id for user_id in user_ids if content.find(user_id.encode()) >= 0]
