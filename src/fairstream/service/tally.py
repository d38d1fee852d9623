"""Counts the results of lists that people saw.

An event is a result of the latest list that showed its item to its user, at most `[impressions] window_hours` before.
An item of a list counts as clicked after the first such event of a positive kind, and as converted after the first one
of a kind in `[events] judge_by` (`purchase` where that names none).

The transaction that counts new rows also moves its place in both tables: a process that is killed counts no row twice
and leaves none out. An event is counted one call after it was first seen, so that a list may arrive seconds after its
clicks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, case, func, select, update

from fairstream.service import schema
from fairstream.service.database import now, reading, writing
from fairstream.service.event_store import one_writer
from fairstream.service.impressions import HOUR, TALLIED_EVENTS, TALLIED_LISTS, add_counts, insert_into, prune
from fairstream.service.people import in_parts
from fairstream.service.registry import running_experiment
from fairstream.service.settings import EventKinds
from fairstream.service.workspace import Workspace

_LISTS_AT_ONCE, _EVENTS_AT_ONCE = 2_000, 10_000
_NOTHING, _CLICKED, _CONVERTED = "012"
_Showings = dict[tuple[str, str], list[Row[Any]]]
"""By user and item: the lists with the item, the earliest first."""
_rows, _users = schema.impressions, schema.experiment_users


class Tally:
    """Counts the results of lists; there may be any number of processes with one each."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._seen = 0  # the last event at the call before
        self._pruned = 0

    def count(self) -> None:
        """Count everything that is new."""
        engine = self._workspace.engine
        with reading(engine) as connection:
            until, self._seen = self._seen, connection.scalar(select(func.max(schema.events.c.seq))) or 0
        while self._count_some(until):
            pass
        if now() - self._pruned > HOUR:
            self._pruned = now()
            prune(self._workspace)

    def _count_some(self, until: int) -> bool:
        """Count some new lists and events; return whether there may be more."""
        with reading(self._workspace.engine) as connection:
            places = _places(connection)
            if TALLIED_LISTS not in places:
                return False
            batch = _Batch(connection, self._workspace, places[TALLIED_LISTS], places[TALLIED_EVENTS], until)
        if not (batch.lists or batch.events):
            return False
        with writing(self._workspace.engine) as connection:
            one_writer(connection)
            # Another process has counted these rows, or somebody was forgotten: count again.
            if _places(connection) == places:
                _move(connection, TALLIED_LISTS, batch.lists)
                _move(connection, TALLIED_EVENTS, batch.events)
                batch.write(connection)
        return len(batch.lists) == _LISTS_AT_ONCE or len(batch.events) == _EVENTS_AT_ONCE


def _places(connection: Connection) -> dict[str, int]:
    place = schema.changes.c
    rows = select(place.name, place.version).where(place.name.in_((TALLIED_LISTS, TALLIED_EVENTS, "forgotten")))
    return dict(connection.execute(rows).all())


def _move(connection: Connection, name: str, rows: Sequence[Row[Any]]) -> None:
    if rows:
        change = update(schema.changes).where(schema.changes.c.name == name)
        connection.execute(change.values(version=rows[-1].seq))


class _Batch:
    """New lists, new events, and the lists that these are results of."""

    def __init__(self, connection: Connection, workspace: Workspace, after: int, after_event: int, until: int) -> None:
        event, config = schema.events.c, workspace.config
        new = select(_rows).where(_rows.c.seq > after).order_by(_rows.c.seq).limit(_LISTS_AT_ONCE)
        self.lists = connection.execute(new).all()
        last = self.lists[-1].seq if self.lists else after
        results = select(schema.events).where(event.seq > after_event, event.seq <= until).order_by(event.seq)
        n_events = 0 if len(self.lists) == _LISTS_AT_ONCE else _EVENTS_AT_ONCE  # events wait for the lists before them
        self.events = connection.execute(results.limit(n_events)).all()
        self._window = round(config.impressions.window_hours * HOUR)
        self.n: Counter[tuple[int, str, str, str, str]] = Counter()
        self._outcomes: dict[int, list[str]] = {}
        self._users: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.lists:
            self._hourly(row, "lists", 1)
            self._add(row, "shown", len(row.items))
        self._attribute(self._shown_before(connection, last), config.events)

    def _shown_before(self, connection: Connection, last: int) -> _Showings:
        """Return the lists of the events' users by user and item."""
        if not self.events:
            return {}
        first, until = min(event.time for event in self.events), max(event.time for event in self.events)
        within = (_rows.c.seq <= last, _rows.c.time >= first - self._window, _rows.c.time <= until)
        shown, wanted = defaultdict(list), {(event.user_id, event.item_id) for event in self.events}
        for part in in_parts(sorted({event.user_id for event in self.events}), 1000):
            of_users = select(_rows).where(_rows.c.user_id.in_(part), *within).order_by(_rows.c.time, _rows.c.seq)
            for row in connection.execute(of_users):
                for pair in wanted.intersection((row.user_id, item) for item in row.items):
                    shown[pair].append(row)
        return shown

    def _attribute(self, shown: _Showings, kinds: EventKinds) -> None:
        converting = conversions(kinds)
        for event in self.events:
            lists = [row for row in shown.get((event.user_id, event.item_id), ()) if row.time <= event.time]
            if not lists or event.time - lists[-1].time > self._window or kinds.kinds.get(event.kind, 0.0) <= 0:
                continue
            row = lists[-1]
            position = row.items.index(event.item_id)
            outcomes = self._outcomes.setdefault(row.seq, list(row.outcomes))
            before = outcomes[position]
            outcomes[position] = max(before, _CONVERTED if event.kind in converting else _CLICKED)
            if before == _NOTHING:
                self._add(row, "clicked", 1, row.arms[position] if row.arms.islower() else "")
            if before != _CONVERTED == outcomes[position]:
                self._add(row, "converted", 1)

    def _hourly(self, row: Row[Any], what: str, n: int) -> None:
        self.n[row.time // HOUR, "", "", row.model, what] += n

    def _add(self, row: Row[Any], what: str, n: int, team: str = "") -> None:
        """Count for the hour, and for the user of an experiment, whose vote is the team of the item clicked first."""
        self._hourly(row, what, n)
        if row.experiment:
            none = {"arm": "" if row.arms.islower() else row.arms, "shown": 0, "clicked": 0, "converted": 0, "vote": 0}
            user = self._users.setdefault((row.experiment, row.user_id), none)
            user[what] += n
            user["vote"] = user["vote"] or {"": 0, "a": -1, "b": 1}[team]

    def write(self, connection: Connection) -> None:
        """Store the counts."""
        add_counts(connection, self.n)
        if self._outcomes:
            change = update(_rows).where(_rows.c.seq == bindparam("row")).values(outcomes=bindparam("new"))
            connection.execute(change, [{"row": seq, "new": "".join(new)} for seq, new in self._outcomes.items()])
        running = running_experiment(connection)
        sums = self._users.items()
        users = [{"experiment": of, "user_id": user, **own} for (of, user), own in sums if of == running]
        if users:
            new = insert_into(connection, _users)
            added = {name: _users.c[name] + new.excluded[name] for name in ("shown", "clicked", "converted")}
            added["vote"] = case((_users.c.vote == 0, new.excluded.vote), else_=_users.c.vote)
            connection.execute(new.on_conflict_do_update(index_elements=["experiment", "user_id"], set_=added), users)


def conversions(kinds: EventKinds) -> tuple[str, ...]:
    """The kinds of events that count as a conversion."""
    return kinds.judge_by or tuple(kind for kind in kinds.kinds if kind == "purchase")
