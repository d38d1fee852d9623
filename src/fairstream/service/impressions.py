"""Lists that people saw: storing, reporting, and items that were shown in vain. `tally` counts the results."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import compress
from threading import Lock
from time import sleep
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, computed_field
from sqlalchemy import Connection, Engine, Table, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from fairstream.service import schema
from fairstream.service.database import PAUSE_SECONDS, now, reading, writing
from fairstream.service.event_store import one_writer
from fairstream.service.people import forgotten_until
from fairstream.service.records import Record, Time, from_microseconds
from fairstream.service.settings import Impressions
from fairstream.service.workspace import Workspace

if TYPE_CHECKING:
    from fairstream.evaluation.resampling import Array

TALLIED_LISTS, TALLIED_EVENTS = "impressions tallied", "events tallied"
"""Names in `changes` of the last rows that were counted."""
HOUR = 3_600_000_000
_DAY = 24 * HOUR
_AT_ONCE = 2_000
_PERIODS = 60  # in which published numbers of groups are looked for
_MAX_PEOPLE = 200_000  # whose shown items a process remembers
_rows = schema.impressions


class Shown(NamedTuple):
    """A list that somebody saw."""

    user_id: str
    items: list[str]
    time: int
    list_id: str | None = None
    placement: str | None = None
    model: str = ""
    experiment: str = ""
    arms: str = ""
    propensities: Sequence[float] = ()

    def row(self) -> dict[str, Any]:
        """Return the row to store; a list that is sent again under its id is the same at any time."""
        name = self.list_id or self.time
        digest = sha256(json.dumps([self.user_id, self.items, name, self.placement]).encode())
        return self._asdict() | {"id": digest.hexdigest(), "outcomes": "0" * len(self.items)}


class ImpressionsReceipt(Record):
    """How many lists were new, known already, or of forgotten people."""

    accepted: int
    """Lists that are new."""
    repeated: int
    """Lists that were stored before."""
    forgotten: int
    """Lists of people who were forgotten: not stored."""


def store(workspace: Workspace, batches: Sequence[Sequence[Shown]]) -> list[ImpressionsReceipt]:
    """Store batches of lists in one transaction: all of them or none."""
    with writing(workspace.engine) as connection:
        one_writer(connection)  # rows become visible in the order of `seq`, and nobody is forgotten in between
        first = insert_into(connection, schema.changes).on_conflict_do_nothing()
        last = connection.scalar(select(func.max(schema.events.c.seq))) or 0
        connection.execute(first, [{"name": TALLIED_LISTS, "version": 0}, {"name": TALLIED_EVENTS, "version": last}])
        until = forgotten_until(connection, workspace.secret, {each.user_id for batch in batches for each in batch})
        receipts = []
        for batch in batches:
            rows = [each.row() for each in batch if each.time > until.get(each.user_id, -(2**63))]
            new = insert_into(connection, _rows).on_conflict_do_nothing(index_elements=[_rows.c.id])
            n = len(connection.execute(new.returning(_rows.c.seq), rows).all()) if rows else 0
            forgotten = len(batch) - len(rows)
            receipts.append(ImpressionsReceipt(accepted=n, repeated=len(rows) - n, forgotten=forgotten))
        return receipts


def insert_into(connection: Connection, table: Table) -> Any:
    """Return an insert that may say what a conflict does."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def add_counts(connection: Connection, n: Mapping[tuple[int, str, str, str, str], int]) -> None:
    """Add to the hourly counts of (hour, experiment, arm, model, what)."""
    if n:
        table, key = schema.impression_counts, ("hour", "experiment", "arm", "model", "what")
        new = insert_into(connection, table)
        added = new.on_conflict_do_update(index_elements=key, set_={"n": table.c.n + new.excluded.n})
        rows = [dict(zip(key, values, strict=True), n=count) for values, count in sorted(n.items())]
        connection.execute(added, rows)


def prune(workspace: Workspace) -> int:
    """Delete the lists that are older than `retention.impressions_days`; return how many there were."""
    before, n_deleted = now() - workspace.config.retention.impressions_days * _DAY, 0
    while True:
        with writing(workspace.engine) as connection:
            earliest = select(_rows.c.seq, _rows.c.time).order_by(_rows.c.seq).limit(_AT_ONCE)
            rows = connection.execute(earliest).all()
            old = [row.seq for row in rows if row.time < before]
            connection.execute(delete(_rows).where(_rows.c.seq.in_(old)))
        n_deleted += len(old)
        if len(old) < _AT_ONCE:
            return n_deleted
        sleep(PAUSE_SECONDS)  # lets writers of events in


class Shares(Record):
    """How many items were shown, clicked and converted."""

    lists: int = Field(0, examples=[150])
    """Lists that were shown."""
    shown: int = Field(0, examples=[3000])
    """Items that were shown."""
    clicked: int = Field(0, examples=[120])
    """Shown items with an event of a positive kind within `impressions.window_hours`."""
    converted: int = Field(0, examples=[30])
    """Shown items with an event of a kind of `events.judge_by`, by default purchase."""

    @computed_field(examples=[0.04])  # type: ignore[prop-decorator]
    @property
    def click_through(self) -> float | None:
        """Share of shown items with an event of a positive kind; null without any."""
        return self.clicked / self.shown if self.shown else None

    @computed_field(examples=[0.01])  # type: ignore[prop-decorator]
    @property
    def conversion(self) -> float | None:
        """Share of shown items with a conversion; null without any."""
        return self.converted / self.shown if self.shown else None


class Report(Record):
    """Impressions since a moment, and their results."""

    since: Time
    """When the counted hours begin."""
    everyone: Shares
    """All lists."""
    by_model: dict[str, Shares]
    """The same for each model; `popularity` stands for none."""
    by_group: dict[str, Any] = Field(
        examples=[
            {
                "clicks": {
                    "period": 12,
                    "n_users": 9_000,
                    "everyone": [0.41, [0.4, 0.42]],
                    "by_group": {"F": [0.38, [0.36, 0.4]], "M": [0.42, [0.4, 0.44]]},
                    "withheld": {},
                }
            }
        ]
    )
    """The shares of people who clicked and who converted among those who saw a list, as updates publish them."""

    @classmethod
    def of(cls, engine: Engine, hours: int) -> Report:
        """Return the report of the last hours, from the hourly counts."""
        count, first = schema.impression_counts.c, now() // HOUR - hours + 1
        query = select(count.model, count.what, func.sum(count.n)).group_by(count.model, count.what)
        models = defaultdict[str, Counter[str]](Counter)
        with reading(engine) as connection:
            rows = connection.execute(query.where(count.hour >= first, count.what.in_(Shares.model_fields)))
            for model, what, n in rows:
                models[model or "popularity"][what] += int(n)
        return cls(
            since=from_microseconds(first * HOUR),
            everyone=Shares(**sum(models.values(), Counter())),
            by_model={model: Shares(**n) for model, n in sorted(models.items())},
            by_group=published_results(engine),
        )


def published_results(engine: Engine) -> dict[str, Any]:
    """Return who clicked and who converted in the latest period with numbers of groups, else in the latest period."""
    rows, published = schema.periods.c, dict[str, Any]()
    latest = select(rows.t, rows.evaluation).where(rows.evaluation.is_not(None)).order_by(rows.t.desc()).limit(_PERIODS)
    with reading(engine) as connection:
        for t, evaluation in connection.execute(latest).all():
            for what, share in evaluation.get("lists", {}).items():
                known = published.get(what)
                if known is None or (share["by_group"] and not known["by_group"]):
                    published[what] = {"period": t, **share}
    return published


def results_of_people(engine: Engine, what: Literal["clicks", "conversions"], since: int) -> tuple[list[str], Array]:
    """Return the people who saw a list after a time, and 1 for those with a click or conversion, 0 for the others."""
    results = func.replace(_rows.c.outcomes, "0", "")
    if what == "conversions":
        results = func.replace(results, "1", "")
    query = select(_rows.c.user_id, func.max(func.length(results)) > 0).where(_rows.c.time > since)
    with reading(engine) as connection:
        people: dict[str, bool] = dict(connection.execute(query.group_by(_rows.c.user_id)).all())
    return list(people), np.array(list(people.values()), np.float64)


class ShownInVain:
    """How often each user was shown each item without an event; safe to use from many threads.

    An item that was not shown for `avoid_days` starts again at 0. Where there are too many people, those shown least
    recently are dropped.
    """

    def __init__(self, config: Impressions) -> None:
        self._after, self._micros = config.avoid_after, round(config.avoid_days * _DAY)
        self._counts: OrderedDict[str, dict[str, tuple[int, int]]] = OrderedDict()  # item: how often, the last time
        self._lock = Lock()

    def add(self, user_id: str, items: Iterable[str], time: int) -> None:
        """Count a list."""
        with self._lock:
            counts = self._counts.setdefault(user_id, {})
            self._counts.move_to_end(user_id)
            for item in items:
                n, last = counts.get(item, (0, 0))
                counts[item] = n + 1 if last > time - self._micros else 1, max(last, time)
            while len(self._counts) > _MAX_PEOPLE:
                self._counts.popitem(last=False)

    def __bool__(self) -> bool:
        """Return whether anybody was shown anything."""
        return bool(self._counts)

    def users(self) -> list[str]:
        with self._lock:
            return list(self._counts)

    def reacted(self, user_ids: Iterable[str], item_ids: Iterable[str]) -> None:
        """Start again for items that their users had events with."""
        with self._lock:
            for user_id, item_id in zip(user_ids, item_ids, strict=True) if self._counts else ():
                self._counts.get(user_id, {}).pop(item_id, None)

    def forget(self, user_ids: Iterable[str]) -> None:
        with self._lock:
            for user_id in user_ids:
                self._counts.pop(user_id, None)

    def avoided_by(self, user_id: str, time: int) -> list[str]:
        """Return the items to leave out of a user's lists."""
        if self._after is None or user_id not in self._counts:
            return []
        with self._lock:
            counts, since = self._counts.get(user_id, {}), time - self._micros
            return [item for item, (n, last) in counts.items() if n >= self._after and last > since]


def shown_after(engine: Engine, seq: int, since: int) -> Iterator[tuple[int, str, list[str], int]]:
    """Yield seq, user, unclicked items and time of the lists after `seq`, in parts; no items from before `since`."""
    columns = select(_rows.c.seq, _rows.c.user_id, _rows.c["items"], _rows.c.outcomes, _rows.c.time)
    while True:
        with reading(engine) as connection:
            page = columns.where(_rows.c.seq > seq).order_by(_rows.c.seq).limit(_AT_ONCE)
            part = connection.execute(page).all()
        for row in part:
            items = compress(row[2], map("0".__eq__, row.outcomes)) if row.time >= since else ()
            yield row.seq, row.user_id, [*items], row.time
        if len(part) < _AT_ONCE:
            return
        seq = part[-1].seq
