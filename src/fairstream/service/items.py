"""Items that are withdrawn: known to the models, and in no list."""

from __future__ import annotations

from sqlalchemy import Engine, select
from sqlalchemy.dialects import postgresql, sqlite

from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import now, reachable, writing
from fairstream.service.records import Record, Time

_items = schema.items


class Item(Record):
    """Whether an item may be recommended, and since when."""

    item_id: str
    available: bool
    changed: Time


def set_available(engine: Engine, item_id: str, available: bool, *, by: str) -> Item:
    """Withdraw an item, or bring it back; a change stands in the record, with the name of the key."""
    insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
    values = {"item_id": item_id, "available": available, "changed": now()}
    with reachable(engine), writing(engine) as connection:
        before = connection.scalar(select(_items.c.available).where(_items.c.item_id == item_id))
        if available != (before is None or before):
            record(connection, "item", {"item_id": item_id, "available": available, "by": by})
        connection.execute(insert(_items).values(values).on_conflict_do_update(index_elements=["item_id"], set_=values))
    return Item.model_validate(values)


def listed(engine: Engine, available: bool | None = None, after: str = "", limit: int = 100) -> list[Item]:
    """Items whose availability was ever set, in the order of their ids."""
    page = select(_items).where(_items.c.item_id > after).order_by(_items.c.item_id).limit(limit)
    if available is not None:
        page = page.where(_items.c.available.is_(available))
    with reachable(engine), engine.connect() as connection:
        return [Item.from_row(row) for row in connection.execute(page).mappings()]
