"""Items that are withdrawn: known to the models, and in no list."""

from __future__ import annotations

from sqlalchemy import Engine, select
from sqlalchemy.dialects import postgresql, sqlite

from fairstream.service import schema
from fairstream.service.database import bump, now, reading, writing
from fairstream.service.records import Record, Time

_items = schema.items


class Item(Record):
    """Whether an item may be recommended, and since when."""

    item_id: str
    available: bool
    changed: Time


def set_available(engine: Engine, item_id: str, available: bool) -> Item:
    """Withdraw an item, or make it available again."""
    insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
    values = {"item_id": item_id, "available": available, "changed": now()}
    with writing(engine) as connection:
        changed = {**values, "version": bump(connection, "items")}
        new = insert(_items).values(**changed, properties="{}")
        connection.execute(new.on_conflict_do_update(index_elements=["item_id"], set_=changed))
    return Item.model_validate(values)


def listed(engine: Engine, available: bool | None = None, after: str = "", limit: int = 100) -> list[Item]:
    """Items whose availability was ever set, in the order of their ids."""
    page = select(_items).where(_items.c.item_id > after).order_by(_items.c.item_id).limit(limit)
    if available is not None:
        page = page.where(_items.c.available.is_(available))
    with reading(engine) as connection:
        return [Item.model_validate(row, from_attributes=True) for row in connection.execute(page)]
