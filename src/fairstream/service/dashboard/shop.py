"""What the shop shows and sells, by item."""

from __future__ import annotations

from sqlalchemy import Engine, func, select

from fairstream.service.database import reading
from fairstream.service.schema import events

_N_EVENTS = 100_000  # the latest, so that a page costs the same in a shop of any size
_N_ITEMS = 15
_MIN_PEOPLE = 5  # with fewer, a reader could tell what one person had


def chosen_most(engine: Engine) -> list[tuple[str, int]]:
    """Return the items that most people chose in the latest events, with the numbers of people."""
    last = select(func.max(events.c.seq)).scalar_subquery()
    n = func.count(events.c.user_id.distinct())
    query = select(events.c.item_id, n).where(events.c.seq > last - _N_EVENTS).group_by(events.c.item_id)
    query = query.having(n >= _MIN_PEOPLE).order_by(n.desc(), events.c.item_id).limit(_N_ITEMS)
    with reading(engine) as connection:
        return [(item, int(people)) for item, people in connection.execute(query)]
