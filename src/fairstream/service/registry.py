"""The models of a workspace, and which of them is in service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, Engine, RowMapping, Table, delete, func, insert, or_, select, tuple_, update

from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import bump, now, reading, writing
from fairstream.service.records import Model, UnknownIdError
from fairstream.service.workspace import Workspace


class InService(NamedTuple):
    """The model in service, and since when.

    The time also changes when forgetting rewrites the model: a process that holds it in memory must load it again.
    """

    model: str
    since: int


def newest_first(
    engine: Engine, table: Table, time: Column[Any], before: str | None, limit: int | None
) -> list[RowMapping]:
    """Return a page of a table, the newest first: up to `limit` rows older than the one with the id `before`."""
    page = select(table).order_by(time.desc(), table.c.id.desc()).limit(limit)
    with reading(engine) as connection:
        if before is not None:
            last = connection.execute(select(time, table.c.id).where(table.c.id == before)).first()
            if last is None:
                raise UnknownIdError(f"unknown cursor {before!r}: none of the {table.name} has this id")
            page = page.where(tuple_(time, table.c.id) < tuple_(*last))
        return list(connection.execute(page).mappings())


def models(engine: Engine, before: str | None = None, limit: int | None = None) -> list[Model]:
    """Return all models, or a page, the newest first; `before` is the id of the last one on the page before."""
    rows = newest_first(engine, schema.models, schema.models.c.created, before, limit)
    return [Model(**row) for row in rows]


def model(engine: Engine, model_id: str) -> Model:
    """Return one model."""
    with reading(engine) as connection:
        return _model(connection, model_id)


def _model(connection: Connection, model_id: str) -> Model:
    row = connection.execute(select(schema.models).where(schema.models.c.id == model_id)).mappings().first()
    if row is None:
        raise UnknownIdError(
            f"there is no model {model_id[:64]!r}; GET /v1/models and `fairstream models` list those there are"
        )
    return Model(**row)


def rejected_from(engine: Engine, parent: str) -> list[Model]:
    """Return the rejected candidates that were fine-tuned from a model."""
    rejected = select(schema.models).where(schema.models.c.parent == parent, schema.models.c.state == "rejected")
    with reading(engine) as connection:
        return [Model(**row) for row in connection.execute(rejected).mappings()]


def n_unpromoted(engine: Engine) -> int:
    """Return how many updates were rejected, failed or skipped since the last promotion."""
    updates, models = schema.updates.c, schema.models.c
    joined = schema.updates.join(schema.models, models.id == updates.model, isouter=True)
    is_promoted = or_(updates.state == "promoted", models.state == "promoted")  # by the gate, or later by hand
    last = select(func.coalesce(func.max(updates.number), 0)).select_from(joined).where(is_promoted)
    since = updates.state.in_(("rejected", "failed", "skipped")) & (updates.number > last.scalar_subquery())
    with reading(engine) as connection:
        return connection.scalar(select(func.count()).where(since)) or 0


def in_service(engine: Engine) -> InService | None:
    """Return the model in service; None before the first one."""
    with reading(engine) as connection:
        row = connection.execute(select(schema.service.c.model, schema.service.c.since)).first()
    return None if row is None else InService(*row)


def put_into_service(connection: Connection, model_id: str) -> None:
    """Put a model into service when the transaction ends."""
    since = now()
    if connection.execute(update(schema.service).values(model=model_id, since=since)).rowcount == 0:
        connection.execute(insert(schema.service).values(id=1, model=model_id, since=since))
    connection.execute(update(schema.models).where(schema.models.c.id == model_id).values(state="promoted"))


@contextmanager
def deciding(engine: Engine) -> Iterator[tuple[Connection, str | None]]:
    """Open a transaction in which no other process changes the model in service; yield that model's id.

    A rollback waits for no update, because it takes no updating lock. The update checks that its parent is in service.
    """
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("LOCK TABLE service IN SHARE ROW EXCLUSIVE MODE")
        yield connection, connection.scalar(select(schema.service.c.model))


def promote(workspace: Workspace, model_id: str, *, by: str) -> None:
    """Promote a rejected or earlier model."""
    with deciding(workspace.engine) as (connection, current):
        change_model(workspace, connection, current, model_id, "promote", by)


def rollback(workspace: Workspace, *, by: str) -> str:
    """Put the parent of the model in service back into service; return its id."""
    with deciding(workspace.engine) as (connection, current):
        parent: str | None = connection.scalar(select(schema.models.c.parent).where(schema.models.c.id == current))
        if parent is None:
            raise WorkspaceError(
                "there is no earlier model to go back to; `fairstream promote` puts another one into service"
            )
        change_model(workspace, connection, current, parent, "rollback", by)
        return parent


def change_model(
    workspace: Workspace, connection: Connection, current: str | None, model_id: str, kind: str, by: str
) -> None:
    """Put a kept model into service when the transaction ends, which ends an experiment."""
    require_kept(workspace, connection, model_id)
    if current == model_id:
        raise WorkspaceError(f"model {model_id} is in service already")
    end_experiment(connection, "replaced", f"Model {model_id} was put into service.", by=by)
    put_into_service(connection, model_id)
    record(connection, kind, {"model": model_id, "instead_of": current, "by": by})


def require_kept(workspace: Workspace, connection: Connection, model_id: str) -> None:
    """Raise an error unless a model has its files."""
    wanted = _model(connection, model_id)
    if not workspace.models.exists(wanted.folder):
        raise WorkspaceError(
            f"model {model_id} cannot answer: it is {wanted.state} and its files were removed; "
            f"the last {workspace.config.keep_models} models are kept (keep_models)"
        )


def running_experiment(connection: Connection) -> str | None:
    """Return the id of the experiment that is running."""
    rows = schema.experiments.c
    running: str | None = connection.scalar(select(rows.id).where(rows.state == "running"))
    return running


def end_experiment(connection: Connection, outcome: str, sentence: str, *, by: str) -> str | None:
    """End the running experiment when the transaction ends; a decision that was made before stays."""
    if (running := running_experiment(connection)) is None:
        return None
    rows, users = schema.experiments, schema.experiment_users
    own = update(rows).where(rows.c.id == running)
    connection.execute(own.values(state="ended", share=0.0, ended=now()))
    decision = {"outcome": outcome, "sentence": sentence}
    connection.execute(own.where(rows.c.decision.is_(None) | (outcome == "worse")).values(decision=decision))
    connection.execute(delete(users).where(users.c.experiment == running))
    record(connection, "experiment", {"id": running, "ended": decision, "by": by})
    bump(connection, "experiment")
    return running


def tidy(workspace: Workspace) -> None:
    """Remove folders that a killed update has left, and models too old to be kept."""
    with deciding(workspace.engine) as (connection, current):  # so that no process promotes what this removes
        rows = models(workspace.engine)
        folders = {row.folder for row in rows[: workspace.config.keep_models]}
        parents = {row.parent for row in rows if row.id == current}
        arms = {*connection.scalars(select(schema.experiments.c.b).where(schema.experiments.c.state == "running"))}
        folders |= {row.folder for row in rows if row.id == current or row.id in parents | arms}
        workspace.models.remove(workspace.models.names() - folders)
