"""Forgetting a person: events, attribute and row, in every table and every model on disk.

What is left is a keyed hash of the id and the time, so that a stream that is replayed does not
bring the person back; events after that time are those of a new person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, delete, func, insert, select, update

from fairstream.errors import WorkspaceError
from fairstream.recommender import load
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import now, writing
from fairstream.service.event_store import one_writer
from fairstream.service.forgotten import digests
from fairstream.service.people import values_of
from fairstream.service.registry import models, tidy
from fairstream.service.workspace import Workspace


@dataclass(frozen=True)
class Forgotten:
    """What was removed, and that nothing is left."""

    n_events: int
    had_attribute: bool
    models: tuple[str, ...]
    """The models that knew the person and were rewritten."""


def forget(workspace: Workspace, user_id: str, *, by: str) -> Forgotten:
    """Remove a person, and check that it is so. Killed on the way, the same call finishes the work."""
    (digest,) = digests(workspace.secret, [user_id])
    with workspace.updating():
        tidy(workspace)
        n_events, had_attribute = _forget_rows(workspace, user_id, digest, by)
        models = _forget_in_models(workspace, user_id)
        found = Forgotten(n_events, had_attribute, models)
        with writing(workspace.engine) as connection:
            # Whoever holds a model in memory sees by the new time that it must be read again.
            connection.execute(update(schema.service).values(since=now()))
            done = {"user": digest, "n_events": n_events, "models": list(models), "by": by}
            record(connection, "forgotten", done)
        scrub(workspace.engine)
        _prove(workspace, user_id)
        return found


def _forget_rows(workspace: Workspace, user_id: str, digest: str, by: str) -> tuple[int, bool]:
    with writing(workspace.engine) as connection:
        one_writer(connection)  # who stores events meanwhile has asked before who was forgotten
        connection.execute(delete(schema.forgotten).where(schema.forgotten.c.digest == digest))
        connection.execute(insert(schema.forgotten).values(digest=digest, until=now()))
        n_events = connection.execute(delete(schema.events).where(schema.events.c.user_id == user_id)).rowcount
        attribute = connection.execute(delete(schema.attributes).where(schema.attributes.c.user_id == user_id)).rowcount
        record(connection, "forget", {"user": digest, "n_events": n_events, "by": by})
    return n_events, attribute > 0


def _forget_in_models(workspace: Workspace, user_id: str) -> tuple[str, ...]:
    people, rewritten, there = values_of(workspace.engine), [], workspace.models.names()
    for row in models(workspace.engine):
        if row.folder not in there:
            continue
        recommender = load(workspace.models.path(row.folder), device="cpu")
        # What is counted with weights by group is counted again.
        recommender.set_groups(people.rename_columns(["user_id", recommender.state.groups.attribute]))
        if recommender.forget(user_id):
            folder = _next_folder(row.folder)
            with workspace.models.new(folder) as fresh:
                recommender.save(fresh, with_groups=False)
            with writing(workspace.engine) as connection:
                connection.execute(update(schema.models).where(schema.models.c.id == row.id).values(folder=folder))
            workspace.models.remove([row.folder])
            rewritten.append(row.id)
    return tuple(rewritten)


def _next_folder(folder: str) -> str:
    """The name of the next version of a model's files: ID, ID.1, ID.2, …"""
    model, _, n = folder.partition(".")
    return f"{model}.{int(n or 0) + 1}"


def scrub(engine: Engine) -> None:
    """Overwrite what deleted rows have left in the database's files."""
    connection = engine.raw_connection()
    try:
        driver: Any = connection.driver_connection
        if engine.dialect.name == "postgresql":
            driver.autocommit = True  # a vacuum is no part of a transaction
            driver.execute(f"VACUUM FULL {schema.events.name}, {schema.PEOPLE}.{schema.attributes.name}")
            driver.autocommit = False
        else:
            for name in ("main", schema.PEOPLE):
                driver.execute(f"VACUUM {name}")
                driver.execute(f"PRAGMA {name}.wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _prove(workspace: Workspace, user_id: str) -> None:
    """Look everywhere once more."""
    with workspace.engine.connect() as connection:
        for table in (schema.events, schema.attributes):
            left = connection.execute(select(func.count()).where(table.c.user_id == user_id)).scalar_one()
            if left:  # events that have come in since are dated after the forgetting, or were on their way
                raise WorkspaceError(f"{left} row(s) of this user have come in meanwhile; run forget again")
    for folder in workspace.models.names():
        if load(workspace.models.path(folder), device="cpu").state.user_ids.row_of(user_id) >= 0:
            raise WorkspaceError(f"model {folder} still knows this user; run forget again")
