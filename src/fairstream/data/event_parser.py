"""From tables of raw events to ids and times that can be trusted, a table at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.columns import Columns
from fairstream.data.tables import first_sentence, in_one_piece
from fairstream.errors import DataError

_WHAT = "the events table"


class EventParser:
    """Keeps the events whose rating counts, converts their columns, and counts what is not right.

    What is wrong with single events is said once all of them have been counted, by `notes`.
    """

    def __init__(self, like: pa.Table, columns: Columns) -> None:
        """`like` is a table, maybe without rows, whose columns are those of all that will come."""
        self.names = {role: columns.find(role, like, what=_WHAT) for role in ("user", "item", "time")}
        self.rating = columns.find_optional("rating", like, what=_WHAT)
        self._above = columns.rating_above
        self._n_events = self._n_kept = 0
        self._n_missing = dict.fromkeys(self.names, 0)

    def take(self, events: pa.Table) -> tuple[pa.Array, pa.Array, np.ndarray[Any, Any]]:
        """The ids of the users, those of the items, and the times."""
        self._n_events += len(events)
        if self.rating is not None:
            events = events.filter(pc.greater(_ratings(events[self.rating], self.rating), self._above))
        self._n_kept += len(events)
        for role, name in self.names.items():
            self._n_missing[role] += events[name].null_count
        if any(self._n_missing.values()):
            events = events.slice(0, 0)  # there will be no log; go on counting
        user, item, time = (events[name] for name in self.names.values())
        return in_one_piece(user), in_one_piece(item), _times(time, self.names["time"])

    def notes(self) -> tuple[str, ...]:
        """What was left out, if every event that was kept has all that it needs."""
        n, kept, rated = self._n_events, self._n_kept, f"{self.rating} > {self._above:g}"
        if self.rating is not None and n > 0 == kept:
            raise DataError(f"none of the {n} events has {rated}; lower rating_above")
        for role, name in self.names.items():
            if missing := self._n_missing[role]:
                raise DataError(f"every event needs a {role}, but {missing} of {kept} are missing in {name!r}")
        return () if self.rating is None else (f"{kept} of {n} events have {rated} and are kept",)


def _ratings(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    try:
        return column.cast(pa.float64())
    except pa.ArrowException:
        raise DataError(f"ratings must be numbers, but {name!r} holds {column.type}; convert it first") from None


def _times(column: pa.ChunkedArray, name: str) -> np.ndarray[Any, Any]:
    """Integers, floats or timestamps as a NumPy array that sorts."""
    kind = column.type
    if len(column) == 0:
        return np.empty(0)
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us"))
    elif pa.types.is_timestamp(kind) or pa.types.is_integer(kind):
        wanted = pa.int64() if pa.types.is_integer(kind) else pa.timestamp("us", tz=kind.tz)
        try:
            column = pc.cast(column, options=pc.CastOptions(wanted, allow_time_truncate=True))
        except pa.ArrowInvalid as error:
            raise DataError(f"the times in {name!r} are out of range: {first_sentence(error)}") from None
    elif pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    else:
        raise DataError(f"times must be integers, floats or timestamps, but {name!r} holds {kind}; convert it first")
    times: np.ndarray[Any, Any] = column.to_numpy()
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        raise DataError(f"every event needs a time, but {name!r} holds NaN or infinity")
    return times
