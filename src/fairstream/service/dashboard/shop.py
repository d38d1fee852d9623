"""What the shop shows and sells: click-through, coverage of the catalogue, top items."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import Engine, func, select

from fairstream.service import schema
from fairstream.service.dashboard.charts import Chart, Moment, Series, make_chart
from fairstream.service.dashboard.reading import Days
from fairstream.service.database import reading
from fairstream.service.impressions import HOUR
from fairstream.service.lists import Answer, Ask
from fairstream.service.records import from_microseconds
from fairstream.service.rules import Rule
from fairstream.text import percent

_N_EVENTS, _N_LISTS = 100_000, 5_000  # the latest, so that a page costs the same in a shop of any size
_N_ITEMS = 15
_MIN_PEOPLE = 5  # with fewer, a reader could tell what one person had
_HOURS_DRAWN = 72  # longer ranges are drawn by the day


def result_charts(engine: Engine, days: Days) -> list[Chart]:
    """Return click-through and conversion of the items that were shown, by day or hour."""
    row = schema.impression_counts.c
    query = select(row.hour, row.what, func.sum(row.n)).where(days.hold(row.hour * HOUR)).group_by(row.hour, row.what)
    with reading(engine) as connection:
        counts = connection.execute(query).all()
    hours = [hour for hour, _, _ in counts]
    width = 1 if hours and max(hours) - min(hours) < _HOURS_DRAWN else 24
    sums = defaultdict[int, Counter[str]](Counter)
    for hour, what, n in counts:
        sums[hour // width][what] += int(n)
    places = sorted(place for place, n in sums.items() if n["shown"])
    if not places:
        return []
    moments = [Moment(None, from_microseconds(place * width * HOUR)) for place in places]
    drawn = (("chart-clicks", "Click-through", "clicked"), ("chart-conversion", "Conversion", "converted"))
    return [
        make_chart(
            id_,
            f"{title} by {'hour' if width == 1 else 'day'}",
            moments,
            [Series(title, "line-0", [sums[place][what] / sums[place]["shown"] for place in places])],
            percent,
            from_zero=True,
        )
        for id_, title, what in drawn
    ]


class Shown(NamedTuple):
    """The items of the lists that people saw last."""

    n_lists: int
    n_items: int  # different ones
    n_known: int  # in the catalogue, withdrawn ones too
    most: list[tuple[str, int]]  # with the numbers of people

    @property
    def coverage(self) -> float | None:
        return min(1.0, self.n_items / self.n_known) if self.n_lists and self.n_known else None


def shown(engine: Engine) -> Shown:
    """Return what the latest lists held, as `POST /v1/impressions` told it."""
    lists, items = schema.impressions.c, schema.items
    query = select(lists.user_id, lists["items"]).order_by(lists.seq.desc()).limit(_N_LISTS)
    with reading(engine) as connection:
        rows = connection.execute(query).all()
        n_known = connection.scalar(select(func.count()).select_from(items)) or 0
    people = defaultdict[str, set[str]](set)
    for user, held in rows:
        for item in held:
            people[item].add(user)
    most = sorted(((item, len(users)) for item, users in people.items()), key=lambda pair: (-pair[1], pair[0]))
    return Shown(len(rows), len(people), n_known, [each for each in most[:_N_ITEMS] if each[1] >= _MIN_PEOPLE])


def chosen_most(engine: Engine, kinds: Sequence[str]) -> list[tuple[str, int]]:
    """Return the items that most people chose in the latest events, with the numbers of people."""
    row = schema.events.c
    n, last = func.count(row.user_id.distinct()), select(func.max(row.seq)).scalar_subquery()
    query = select(row.item_id, n).where(row.seq > last - _N_EVENTS).group_by(row.item_id)
    query = query.having(n >= _MIN_PEOPLE).order_by(n.desc(), row.item_id).limit(_N_ITEMS)
    with reading(engine) as connection:
        return [(item, int(people)) for item, people in connection.execute(query.where(row.kind.in_(kinds)))]


def titles(engine: Engine, items: Sequence[str]) -> dict[str, str]:
    """Return the titles of items that the catalogue knows."""
    row = schema.items.c
    with reading(engine) as connection:
        rows = connection.execute(select(row.item_id, row.properties).where(row.item_id.in_(items))).all()
    return {item: str(title) for item, properties in rows if (title := json.loads(properties).get("title"))}


def rule_words(rule: Rule) -> str:
    """Return a rule in a sentence.

    >>> rule_words(Rule.model_validate({"at_most": {"n": 3, "per": "brand"}}))
    'At most 3 items of the same brand.'
    """
    if rule.pin is not None:
        return f"{', '.join(rule.pin.items)} at position {rule.pin.position} of every list."
    if rule.boost is not None:
        return (
            f"Items with {rule.boost.filter} move {'up' if rule.boost.factor > 1 else 'down'}: {rule.boost.factor:g} ×."
        )
    assert rule.at_most is not None
    return f"At most {rule.at_most.n} items of the same {rule.at_most.per}."


def reasons(
    recommend: Callable[[str, Ask], Answer], user_id: str, answer: Answer, rules: Sequence[Rule]
) -> dict[str, list[str]]:
    """Return why each item is in a list, and which rules moved it."""
    because = dict(zip(answer.items, answer.because or (), strict=False))
    found = {item: [f"because of {because[item]}"] if because.get(item) else [] for item in answer.items}
    for rule in rules:
        if rule.pin is not None:
            moved, words = set(rule.pin.items), "pinned"
        elif rule.boost is not None:
            ask = Ask(len(answer.items), only=answer.items, where=rule.boost.filter)
            moved, words = set(recommend(user_id, ask).items), f"{rule.boost.filter}: {rule.boost.factor:g} ×"
        else:
            continue
        for item in moved & found.keys():
            found[item].append(words)
    return found
