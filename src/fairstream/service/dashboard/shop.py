"""What the shop shows and sells: click-through, coverage of the catalogue, top items."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from sqlalchemy import Engine, func, select

from fairstream.service import schema
from fairstream.service.dashboard.charts import Chart, Moment, Series
from fairstream.service.dashboard.overview import Days
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
    name, width = ("hour", 1) if hours and max(hours) - min(hours) < _HOURS_DRAWN else ("day", 24)
    sums = defaultdict[int, Counter[str]](Counter)
    for hour, what, n in counts:
        sums[hour // width][what] += int(n)
    shown = {at: n for at, n in sorted(sums.items()) if n["shown"]}
    moments = [Moment(None, from_microseconds(at * width * HOUR)) for at in shown]
    charts = (("chart-clicks", "Click-through", "clicked"), ("chart-conversion", "Conversion", "converted"))
    return [
        Chart(
            id_,
            f"{title} by {name}",
            moments,
            [Series(title, "line-0", [n[what] / n["shown"] for n in shown.values()])],
            percent,
            from_zero=True,
        )
        for id_, title, what in charts
        if shown
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
    """Return the items of the latest lists that `POST /v1/impressions` reported."""
    lists = schema.impressions.c
    query = select(lists.user_id, lists["items"]).order_by(lists.seq.desc()).limit(_N_LISTS)
    with reading(engine) as connection:
        rows = connection.execute(query).all()
        n_known = connection.scalar(select(func.count()).select_from(schema.items)) or 0
    people = Counter(item for _, item in {(user, item) for user, items in rows for item in items})
    most = sorted(people.items(), key=lambda pair: (-pair[1], pair[0]))[:_N_ITEMS]
    return Shown(len(rows), len(people), n_known, [(item, n) for item, n in most if n >= _MIN_PEOPLE])


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
        direction = "up" if rule.boost.factor > 1 else "down"
        return f"Items with {rule.boost.filter} move {direction}: {rule.boost.factor:g} ×."
    assert rule.at_most is not None
    return f"At most {rule.at_most.n} items of the same {rule.at_most.per}."


def reasons(
    recommend: Callable[[str, Ask], Answer], user_id: str, answer: Answer, rules: Sequence[Rule]
) -> dict[str, list[str]]:
    """Return why each item is in a list, and which rules moved it."""
    because = zip(answer.items, answer.because or [None] * len(answer.items), strict=True)
    why = {item: [f"because of {other}"] if other else [] for item, other in because}
    for rule in rules:
        moved: Collection[str] = ()
        if rule.pin is not None:
            moved, words = rule.pin.items, "pinned"
        elif rule.boost is not None:
            ask = Ask(len(answer.items), only=answer.items, where=rule.boost.filter)
            moved, words = recommend(user_id, ask).items, f"{rule.boost.filter}: {rule.boost.factor:g} ×"
        for item in set(moved) & why.keys():
            why[item].append(words)
    return why
