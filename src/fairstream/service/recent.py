"""What users have had since the model learned: what it would otherwise recommend again."""

from __future__ import annotations

from threading import Lock

import numpy as np
import pyarrow as pa

from fairstream.data import Rows, SeenItems
from fairstream.service.event_store import EventStore
from fairstream.service.serving import Served

_EVENTS_AT_ONCE = 500_000
_NOTHING: Rows = np.empty(0, np.int64)


class Recent:
    """The events after a model's own, in its rows.

    It holds only what the model could recommend, of the events that wait and of the last period: what
    limits those limits its memory. Readers never wait: an addition puts new pairs in the place of the old.
    """

    def __init__(self, served: Served, after: int = 0) -> None:
        self._served, self._lock = served, Lock()
        self._state = served.users, SeenItems.from_pairs(_NOTHING, _NOTHING)
        self.last_seq = after

    def of(self, user_id: str, row: int) -> Rows:
        """The items that a user has had; `row` is the user's in the model, −1 for one that it does not know."""
        users, pairs = self._state
        if not pairs.runs:
            return _NOTHING
        if row < 0 and (row := users.row_of(user_id)) < 0:
            return _NOTHING
        return pairs.lists(np.array([row]))[1]

    def add(self, user_ids: pa.Array | pa.ChunkedArray, item_ids: pa.Array | pa.ChunkedArray) -> None:
        """Take events in; those that are there already change nothing."""
        items = self._served.items.lookup(item_ids)
        # What the model does not know it cannot recommend, and what it knows that users have had it does not.
        is_news = (items >= 0) & ~self._served.knows(user_ids, items)
        if not is_news.any():
            return
        with self._lock:
            users, pairs = self._state
            users = users.copy()
            rows = users.extend(user_ids.filter(pa.array(is_news)))
            self._state = users.indexed(), pairs.union(SeenItems.from_pairs(rows, items[is_news]))

    def catch_up(self, store: EventStore) -> None:
        """Take in what has been stored since the last time, by whomever."""
        end = store.last_seq()
        while self.last_seq < end:
            until = min(end, self.last_seq + _EVENTS_AT_ONCE)
            events = store.read(self.last_seq, until)
            if events.num_rows:
                self.add(events["user_id"], events["item_id"])
            self.last_seq = until
