"""From events that do not fit into memory to a log in a folder that can be used where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fairstream.data.columns import Columns
from fairstream.data.event_parser import EventParser
from fairstream.data.external import ColumnFiles, InOrderOfAppearance, in_order_of_time, repeated_pairs
from fairstream.data.group_collector import GroupCollector
from fairstream.data.log import EventLog, is_chronological, notes_on_order, require_events
from fairstream.data.readers import EVENTS, find_people, open_tables, with_groups
from fairstream.data.storage import need_new, writing_to
from fairstream.data.streams import TableStream
from fairstream.data.vocabulary import Rows, Vocabulary
from fairstream.errors import ConfigurationError
from fairstream.files import sibling_tempdir

_ROWS_AT_ONCE = 1 << 20


def ingest(
    source: Any,
    folder: str | Path,
    *,
    users: Any = None,
    group: str | Sequence[str] | None = None,
    advantaged: object = None,
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
    rating_column: str | None = None,
    rating_above: float = 2.0,
    events_at_once: int = 1 << 22,
) -> EventLog:
    """Read events that do not fit into memory into a new `folder`, and open the log that is there then.

    The log is exactly what `read_events` would make of the same source and options. The source is
    read a piece at a time (a `pyarrow.RecordBatchReader` too); the memory needed is that of the
    users' and items' ids and of some pieces of `events_at_once` events. The columns of the log
    stay in the folder's files; `read_events(folder)` opens it again at once.

    >>> import tempfile, pyarrow as pa
    >>> events = pa.table({"user": ["a", "b", "a"], "item": [5, 5, 9], "time": [3, 1, 2]})
    >>> with tempfile.TemporaryDirectory() as place:
    ...     log = ingest(events.to_reader(), f"{place}/log")
    ...     print(log.users.tolist(), log.notes)
    [0, 1, 1] ('the events were not in chronological order and have been sorted by time',)
    """
    if not isinstance(events_at_once, int) or events_at_once < 1:
        raise ConfigurationError(f"events_at_once must be an integer of at least 1, got {events_at_once}")
    columns = Columns(user_column, item_column, time_column, rating_column, rating_above)
    folder = Path(folder)
    need_new(folder)
    tables = open_tables(source, users)
    stream = TableStream(tables.events, what=EVENTS)
    intake = EventParser(stream.like, columns)
    people = find_people(stream.like, tables.users, columns, group=group, advantaged=advantaged)
    with writing_to(folder), sibling_tempdir(folder, "work") as work:
        arrived = _arrived(stream, intake, people if tables.users is None else None, work, events_at_once)
        notes = intake.notes()
        log = arrived.in_order(events_at_once)
        log = replace(log, columns=columns, notes=notes + log.notes)
        with_groups(log, None if people is None else people.groups(log.user_ids.ids, advantaged)).save(folder)
    return EventLog.open(folder)


def _arrived(
    stream: TableStream, intake: EventParser, people: GroupCollector | None, work: Path, at_once: int
) -> _Arrived:
    """All events in files under `work`; `people` listen to what these say of them."""
    named = [*intake.names.values(), intake.rating, *(() if people is None else people.parts)]
    names = [name for name in stream.like.column_names if name in named]
    arrived, latest = _Arrived(ColumnFiles(work / "events"), Vocabulary(), Vocabulary()), None
    for table in stream.pieces(names, min(at_once, _ROWS_AT_ONCE)):
        if people is not None:
            people.add(table)
        users, items, times = intake.take(table)
        if len(times) == 0:
            continue
        arrived.is_sorted &= is_chronological(times) and (latest is None or bool(latest <= times[0]))
        arrived.events.append(arrived.user_ids.extend(users), arrived.item_ids.extend(items), times)
        latest = times[-1]
    return arrived


@dataclass
class _Arrived:
    """Events in files, and their ids in the order of arrival: what `EventLog.from_columns` has in memory."""

    events: ColumnFiles
    user_ids: Vocabulary
    item_ids: Vocabulary
    is_sorted: bool = True

    def in_order(self, at_once: int) -> EventLog:
        """As `EventLog.from_columns` does: order the events, drop repeated pairs, and give rows to the ids."""
        require_events(len(self.events))
        was_sorted = self.is_sorted
        if not was_sorted:
            self._sort(at_once)
        n_repeated = self._drop_repeats(at_once)
        users, items, times = self.events.mapped()
        notes = notes_on_order(was_sorted=was_sorted, n_repeated=n_repeated)
        return EventLog(users, items, times, self.user_ids, self.item_ids, notes=notes)

    def _sort(self, at_once: int) -> None:
        """Put the events in the order of time, and the ids in the order in which they then appear."""
        of_users, of_items = InOrderOfAppearance(len(self.user_ids)), InOrderOfAppearance(len(self.item_ids))
        ordered = ColumnFiles(self.events.folder.with_name("ordered"))

        def emit(users: Rows, items: Rows, times: Any) -> None:
            ordered.append(of_users.renumbered(users), of_items.renumbered(items), times)

        in_order_of_time(self.events, emit, at_once)
        self.events, self.is_sorted = ordered, True
        self.user_ids = Vocabulary.of_distinct(self.user_ids.ids.take(pa.array(of_users.order())))
        self.item_ids = Vocabulary.of_distinct(self.item_ids.ids.take(pa.array(of_items.order())))

    def _drop_repeats(self, at_once: int) -> int:
        """Keep the first event of each pair; gives how many others there were."""
        repeats = repeated_pairs(self.events, len(self.user_ids), at_once)
        if repeats is None:
            return 0
        kept, start = ColumnFiles(self.events.folder.with_name("kept")), 0
        for piece in self.events.pieces(at_once):
            is_first = ~repeats[start : start + len(piece[0])]
            kept.append(*(column[is_first] for column in piece))
            start += len(is_first)
        self.events.remove()
        self.events = kept
        return int(repeats.sum())
