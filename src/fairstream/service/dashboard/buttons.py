"""The buttons of the dashboard: what each one asks before it changes something, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple

from anyio import from_thread
from sqlalchemy import Engine, select

from fairstream.errors import DataError
from fairstream.service import experiments, items, registry, schema
from fairstream.service.audit import Entry, record
from fairstream.service.dashboard.web import plain_text
from fairstream.service.database import reading, writing
from fairstream.service.workspace import Workspace

Fields = Mapping[str, str]  # of the form and of the path


class Button(NamedTuple):
    """A change that an admin confirms on a separate page."""

    act: Callable[[str, Fields], str]  # for a key, in a thread; returns the sentence to show
    question: str
    label: str
    kinds: tuple[str, ...]  # the entries of the audit log that tell who did it last
    back: str = "/"  # the page that shows the outcome


def buttons(workspace: Workspace, request_update: Callable[[str], Coroutine[Any, Any, object]]) -> dict[str, Button]:
    """Return the buttons by their paths."""

    def update(by: str, _: Fields) -> str:
        from_thread.run(request_update, by)
        return "The update has been started."

    def promote(by: str, fields: Fields) -> str:
        registry.promote(workspace, fields["id"], by=by)
        return f"Model {fields['id']} has been promoted."

    def roll_back(by: str, _: Fields) -> str:
        return f"Rolled back to model {registry.rollback(workspace, by=by)}."

    def withdraw(by: str, fields: Fields) -> str:
        return _set_available(workspace.engine, fields, "withdrawn", by)

    def restore(by: str, fields: Fields) -> str:
        return _set_available(workspace.engine, fields, "restored", by)

    def start(by: str, fields: Fields) -> str:
        options = experiments.Options(**{name: fields.get(name, "") for name in ("b", "mode", "metric")})
        return f"Experiment {experiments.start(workspace, options, by=by).id} has started."

    def stop(by: str, _: Fields) -> str:
        return f"Experiment {experiments.stop(workspace, by=by).id} has been stopped."

    def promote_b(by: str, _: Fields) -> str:
        return f"Model {experiments.promote(workspace, by=by)} has been promoted."

    changed, tested, item = ("promote", "rollback"), ("experiment",), ("item",)
    page, of_b = "/experiments", "Start an experiment with model {b}, decided by {metric}?"
    back = "Stop the experiment, and give everyone the model in service?"
    return {
        "/updates": Button(update, "Run an update now?", "Run an update", ("update",)),
        "/rollback": Button(roll_back, "Put the previous model back into service?", "Roll back", changed),
        "/models/{id}/promote": Button(promote, "Put model {id} into service for everyone?", "Promote", changed),
        "/experiments/start": Button(start, of_b, "Start", tested, page),
        "/experiments/stop": Button(stop, back, "Stop", tested, page),
        "/experiments/promote": Button(
            promote_b, "Put model B of the experiment into service for everyone?", "Promote B", changed, page
        ),
        "/items/withdraw": Button(withdraw, "Withdraw the item {item} from every list?", "Withdraw", item, "/items"),
        "/items/restore": Button(restore, "Let the item {item} be recommended again?", "Restore", item, "/items"),
    }


def _set_available(engine: Engine, fields: Fields, state: str, by: str) -> str:
    item_id = plain_text(fields.get("item"))
    if not item_id:
        raise DataError("an item's id must have 1 to 256 printable characters")
    # Every serving process polls for such changes twice a second.
    items.set_available(engine, item_id, state == "restored")
    with writing(engine) as connection:
        record(connection, "item", {"item": item_id, "state": state, "by": by})
    return f"Item {item_id} has been {state}."


def last_entry(engine: Engine, kinds: Collection[str]) -> Entry | None:
    """Return the last entry of these kinds in the audit log."""
    audit = schema.audit
    with reading(engine) as connection:
        row = connection.execute(
            select(audit).where(audit.c.kind.in_(kinds)).order_by(audit.c.seq.desc()).limit(1)
        ).mappings().first()  # fmt: skip
    return None if row is None else Entry(**row)
