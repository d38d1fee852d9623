"""Forget people: events, attributes and rows, in every table and every model.

Phase one, the request, is one short transaction: it deletes the person's events, and a replay does not bring them
back. Phase two takes minutes and the lock for updating: it removes the attribute, rewrites every model that knows the
person under another name, and switches to the new ones in one transaction. Killed at any moment, the model in service
is whole and the request pending; completing it again finishes the work.

A keyed hash of the id and a time remain: events after it are those of a new person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, delete, func, insert, select, update

from fairstream.errors import CheckpointError
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import bump, driver_of, now, reading, writing
from fairstream.service.event_store import one_writer
from fairstream.service.people import PeopleStore, digests, in_parts
from fairstream.service.records import Model, from_microseconds
from fairstream.service.registry import deciding, tidy
from fairstream.service.workspace import Workspace

if TYPE_CHECKING:
    from fairstream.recommender import FairRecommender


@dataclass(frozen=True)
class Request:
    """Phase one."""

    requested: tuple[str, ...]
    unknown: tuple[str, ...]  # users without events
    n_events: int


@dataclass(frozen=True)
class Forgotten:
    """What was removed, and which traces a search found after it."""

    n_users: int
    n_events: int
    n_attributes: int
    models: tuple[str, ...]  # the models that knew one of them and were rewritten
    damaged: tuple[str, ...]  # the models that could not be read, and whose files were removed
    unknown: tuple[str, ...]  # users without any data; nothing was written about them
    problems: tuple[str, ...]  # a sentence for each trace that is left; the requests stay pending


def request_forget(
    workspace: Workspace, user_ids: Iterable[str], *, by: str, known: Collection[str] = frozenset()
) -> Request:
    """Delete the events of users and let no replay bring them back, in one transaction.

    `known` names users to forget even if they have no events.
    """
    wanted, latest, n_events = list(dict.fromkeys(user_ids)), dict[str, int](), 0
    with writing(workspace.engine) as connection:
        one_writer(connection)  # others that store events now have read the forgotten users before
        for part in in_parts(wanted):
            theirs = schema.of_users(connection.dialect, part)
            times = select(schema.events.c.user_id, func.max(schema.events.c.time)).where(theirs)
            latest |= dict(connection.execute(times.group_by(schema.events.c.user_id)).all())
            n_events += connection.execute(delete(schema.events).where(theirs)).rowcount
        requested = [user_id for user_id in wanted if user_id in latest or user_id in known]
        unknown = tuple(user_id for user_id in wanted if user_id not in latest and user_id not in known)
        if not requested:
            return Request((), unknown, 0)
        bump(connection, "forgotten")
        moment, hashes = now(), digests(workspace.secret, requested)
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
    return Request(tuple(requested), unknown, n_events)


def forget(workspace: Workspace, user_ids: Iterable[str], *, by: str) -> Forgotten:
    """Remove people from every table and every model in one pass, and search for traces of them."""
    wanted = list(dict.fromkeys(user_ids))
    with workspace.updating():
        tidy(workspace)
        with workspace.people() as people:
            known = {*_Pending(workspace, wanted).names, *people.values(wanted)["user_id"].to_pylist()}
            for _, model in _models(workspace, mapped=True):  # events may have been pruned, and models still know them
                known.update(() if model is None else _known_to(model, wanted))
            return _complete(workspace, people, request_forget(workspace, wanted, by=by, known=known))


def complete_forgetting(workspace: Workspace) -> Forgotten:
    """Complete the requests; the caller holds the lock for updating."""
    tidy(workspace)
    with workspace.people() as people:
        return _complete(workspace, people, Request((), (), 0))


def export(workspace: Workspace, user_id: str) -> dict[str, Any] | None:
    """Events, group and the models that know a person; None where there is nothing."""
    theirs = schema.of_users(workspace.engine.dialect, [user_id])
    columns = schema.events.c
    query = select(columns.event_id, columns.item_id, columns.time, columns.kind).where(theirs)
    with reading(workspace.engine) as connection:
        rows = connection.execute(query.order_by(schema.events.c.seq)).all()
    with workspace.people() as people:
        values = people.values([user_id])["value"].to_pylist()
    known_to = [row.id for row, model in _models(workspace, mapped=True) if model and _known_to(model, [user_id])]
    if not (rows or values or known_to):
        return None
    return {
        "user_id": user_id,
        "events": [{**row._mapping, "time": from_microseconds(row.time).isoformat()} for row in rows],
        "attribute": {workspace.config.group: values[0]} if values else {},
        "models": known_to,
    }


def _complete(workspace: Workspace, people: PeopleStore, request: Request) -> Forgotten:
    pending = _Pending(workspace, request.requested)
    if not pending.digests:
        return Forgotten(0, 0, 0, (), (), request.unknown, ())
    n_attributes = people.remove(pending.among(people.values()["user_id"].to_pylist()))
    rewritten, damaged = _rewrite_models(workspace, people, pending)
    for engine in (workspace.engine, people.engine):
        _empty_log(engine)
    problems = tuple(_problems(workspace, people, pending))
    with writing(workspace.engine) as connection:
        if not problems:
            for part in in_parts(pending.digests):
                these = schema.forgotten.c.digest.in_(part)
                connection.execute(update(schema.forgotten).where(these).values(completed=now()))
        entry = {"users": pending.digests, "models": rewritten, "damaged": damaged, "is_proved": not problems}
        record(connection, "forgotten", entry)
    counts = len(pending.digests), request.n_events, n_attributes
    return Forgotten(*counts, tuple(rewritten), tuple(damaged), request.unknown, problems)


class _Pending:
    """People to forget: all by hash, and by name those whose name was given or found."""

    def __init__(self, workspace: Workspace, user_ids: Collection[str]) -> None:
        self._secret = workspace.secret
        query = select(schema.forgotten.c.digest, schema.forgotten.c.until).where(
            schema.forgotten.c.completed.is_(None)
        )
        with reading(workspace.engine) as connection:
            self.until = dict(connection.execute(query).all())
        self.digests = sorted(self.until)
        self._digest_of = dict(zip(user_ids, digests(self._secret, user_ids), strict=True))
        self.names = {name: digest for name, digest in self._digest_of.items() if digest in self.until}

    def among(self, user_ids: Collection[str]) -> list[str]:
        if len(self.names) < len(self.until):
            fresh = [user_id for user_id in user_ids if user_id not in self._digest_of]
            self._digest_of.update(zip(fresh, digests(self._secret, fresh), strict=True))
            self.names |= {name: self._digest_of[name] for name in fresh if self._digest_of[name] in self.until}
        return [user_id for user_id in user_ids if user_id in self.names]


def _rewrite_models(workspace: Workspace, people: PeopleStore, pending: _Pending) -> tuple[list[str], list[str]]:
    """Rewrite each model that knows one of them, and switch to all new ones at once."""
    values, folders, damaged, old = people.values(), {}, [], []
    for row, model in _models(workspace):
        if model is None:
            damaged.append(row.id)
        elif gone := pending.among(model.state.user_ids.ids.to_pylist()):
            # What is counted with weights by group is counted again.
            model.set_groups(values.rename_columns(["user_id", model.state.groups.attribute]))
            model.forget(gone)
            name, _, n = row.folder.partition(".")
            folders[row.id] = f"{name}.{int(n or 0) + 1}"  # ID, ID.1, ID.2, …
            with workspace.models.new(folders[row.id]) as fresh:
                model.save(fresh, with_groups=False)
        else:
            continue
        old.append(row.folder)
    if old:
        with deciding(workspace.engine) as (connection, _):
            for model_id, folder in folders.items():
                connection.execute(update(schema.models).where(schema.models.c.id == model_id).values(folder=folder))
            # By the new time a process with the model in memory sees that it must read it again.
            connection.execute(update(schema.service).values(since=now()))
    workspace.models.remove(old)
    return list(folders), damaged


def _models(workspace: Workspace, *, mapped: bool = False) -> Iterator[tuple[Model, FairRecommender | None]]:
    """Each model that is kept, one at a time in memory; None for one whose files cannot be read."""
    names = workspace.models.names()
    with reading(workspace.engine) as connection:
        rows = connection.execute(select(schema.models).where(schema.models.c.folder.in_(names))).mappings().all()
    if rows:
        from fairstream.recommender import load  # noqa: PLC0415 (PyTorch, which no other part of it needs)
    for row in rows:
        model = Model(**row)
        try:
            recommender = load(workspace.models.path(model.folder), device="cpu", mapped=mapped)
        except CheckpointError:
            recommender = None
        yield model, recommender


def _known_to(model: FairRecommender, user_ids: Collection[str]) -> list[str]:
    rows = model.state.user_ids.lookup(list(user_ids))
    return [user_id for user_id, row in zip(user_ids, rows, strict=True) if row >= 0]


def _empty_log(engine: Engine) -> None:
    """Empty SQLite's write-ahead log, which holds old pages, if no other process reads it.

    SQLite overwrites deleted rows (`secure_delete`), and the log with the commits that follow.
    """
    if engine.dialect.name == "sqlite":
        with reading(engine) as connection, driver_of(connection) as driver:
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _problems(workspace: Workspace, people: PeopleStore, pending: _Pending) -> Iterator[str]:
    """Search every table and model; yield a sentence for each trace."""
    names = list(pending.names)
    back = set()
    with reading(workspace.engine) as connection:
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
