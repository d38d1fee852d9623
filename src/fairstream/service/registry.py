"""The models that there are, and the one that answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, Engine, RowMapping, Table, func, insert, select, tuple_, update

from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import now, reachable, writing
from fairstream.service.records import Model
from fairstream.service.workspace import Workspace


class InService(NamedTuple):
    """Which model answers, and since when.

    The time changes also when the model was rewritten because somebody was forgotten: whoever
    holds it in memory must load it again.
    """

    model: str
    since: int


def newest_first(
    engine: Engine, table: Table, time: Column[Any], before: str | None, limit: int | None
) -> list[RowMapping]:
    """A page of a table with the column `id`: up to `limit` rows from before the one with the id `before`."""
    page = select(table).order_by(time.desc(), table.c.id.desc()).limit(limit)
    with reachable(engine), engine.connect() as connection:
        if before is not None:
            last = connection.execute(select(time, table.c.id).where(table.c.id == before)).first()
            if last is None:
                raise WorkspaceError(f"there is no page after {before}: none of the {table.name} has this id")
            page = page.where(tuple_(time, table.c.id) < tuple_(*last))
        return list(connection.execute(page).mappings())


def models(engine: Engine, before: str | None = None, limit: int | None = None) -> list[Model]:
    """All of them, or a page, the newest first; `before` is the id of the last one on the page before."""
    rows = newest_first(engine, schema.models, schema.models.c.created, before, limit)
    return [Model.from_row(row) for row in rows]


def model(engine: Engine, model_id: str) -> Model:
    """One of them."""
    with engine.connect() as connection:
        return _model(connection, model_id)


def _model(connection: Connection, model_id: str) -> Model:
    row = connection.execute(select(schema.models).where(schema.models.c.id == model_id)).mappings().first()
    if row is None:
        raise WorkspaceError(
            f"there is no model {model_id[:64]!r}; GET /v1/models and `fairstream models` list those there are"
        )
    return Model.from_row(row)


def rejected_from(engine: Engine, parent: str) -> list[Model]:
    """The candidates made from a model that the gate has rejected, and nobody promoted since."""
    wanted = select(schema.models).where(schema.models.c.parent == parent, schema.models.c.state == "rejected")
    with engine.connect() as connection:
        return [Model.from_row(row) for row in connection.execute(wanted).mappings()]


def rejections_in_a_row(engine: Engine) -> int:
    """How many candidates were rejected since the last one that was promoted, by the gate or by hand."""
    created, state = schema.models.c.created, schema.models.c.state
    promoted = select(func.max(created)).where(state == "promoted").scalar_subquery()
    count = select(func.count()).where(state == "rejected", created > func.coalesce(promoted, -1))
    with reachable(engine), engine.connect() as connection:
        return connection.execute(count).scalar_one()


def in_service(engine: Engine) -> InService | None:
    """The model that answers, if there is one yet."""
    with engine.connect() as connection:
        row = connection.execute(select(schema.service.c.model, schema.service.c.since)).first()
    return None if row is None else InService(*row)


def put_into_service(connection: Connection, model_id: str) -> None:
    """Let this model answer from the end of the transaction on."""
    since = now()
    there = connection.execute(update(schema.service).values(model=model_id, since=since))
    if there.rowcount == 0:
        connection.execute(insert(schema.service).values(id=1, model=model_id, since=since))
    connection.execute(update(schema.models).where(schema.models.c.id == model_id).values(state="promoted"))


@contextmanager
def deciding(engine: Engine) -> Iterator[tuple[Connection, str | None]]:
    """A transaction in which nobody else changes the model in service; yields that model's id.

    A rollback takes no updating lock, so it waits for no update; the update checks here that its parent is in service.
    """
    with reachable(engine), writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("LOCK TABLE service IN SHARE ROW EXCLUSIVE MODE")
        yield connection, connection.scalar(select(schema.service.c.model))


def promote(workspace: Workspace, model_id: str, *, by: str) -> None:
    """Put a model into service that the gate has rejected, or that was there before."""
    with deciding(workspace.engine) as (connection, current):
        _change(workspace, connection, current, model_id, "promote", by)


def rollback(workspace: Workspace, *, by: str) -> str:
    """Put the model into service that the present one was made from; gives its name."""
    with deciding(workspace.engine) as (connection, current):
        parent: str | None = connection.scalar(select(schema.models.c.parent).where(schema.models.c.id == current))
        if parent is None:
            raise WorkspaceError("there is no earlier model to go back to")
        _change(workspace, connection, current, parent, "rollback", by)
        return parent


def _change(
    workspace: Workspace, connection: Connection, current: str | None, model_id: str, kind: str, by: str
) -> None:
    wanted = _model(connection, model_id)
    if not workspace.models.exists(wanted.folder):
        raise WorkspaceError(
            f"model {model_id} cannot answer: it is {wanted.state} and its files were removed; "
            f"the last {workspace.config.keep_models} models are kept (keep_models)"
        )
    if current == model_id:
        raise WorkspaceError(f"model {model_id} is in service already")
    put_into_service(connection, model_id)
    record(connection, kind, {"model": model_id, "instead_of": current, "by": by})


def tidy(workspace: Workspace) -> None:
    """Remove folders that no row names (an update that was killed left them), and models too old to be kept."""
    with deciding(workspace.engine) as (_, current):  # nobody promotes what is about to be removed
        rows = models(workspace.engine)
        kept = {row.folder for row in rows[: workspace.config.keep_models]}
        parents = {row.parent for row in rows if row.id == current}
        kept |= {row.folder for row in rows if row.id == current or row.id in parents}
        workspace.models.remove(workspace.models.names() - kept)
