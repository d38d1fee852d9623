"""When it happened: whole microseconds since 1970 (UTC), from seconds, ISO 8601 or timestamps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.data.tables import combined
from fairstream.errors import DataError
from fairstream.service.database import now
from fairstream.service.ids import kind_of_column
from fairstream.service.rows import Rows, kind_of

Micros = np.ndarray[Any, np.dtype[np.int64]]

_SECOND = 1_000_000
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_SECOND = int((datetime(1900, 1, 1, tzinfo=UTC) - _1970).total_seconds())
"""Of 1900, before which nothing can have happened."""
_END = int((datetime(9999, 12, 31, tzinfo=UTC) - _1970).total_seconds()) + 86_400
_WANTED = 'must be seconds since 1970 or ISO 8601, such as "2026-01-31T12:00:00Z"'
_RANGE = "must lie in the years 1900 to 9999, counted in seconds since 1970 where it is a number"
_PER_SECOND = {"s": 1, "ms": 1000, "us": _SECOND, "ns": 1000 * _SECOND}


def times_from_values(values: Iterable[Any], rows: Rows) -> Micros:
    """From JSON's numbers and strings."""
    return np.array([_micros(value, row, rows) for row, value in enumerate(values)], dtype=np.int64)


def _micros(value: Any, row: int, rows: Rows) -> int:
    if value is None:
        raise rows.error(row, "time is missing")
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise rows.error(row, f"time {_WANTED}, got a string that is neither") from None
        found = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _1970) // timedelta(microseconds=1)
        if not FIRST_SECOND * _SECOND <= found < _END * _SECOND:
            raise rows.error(row, f"time {_RANGE}")
        return found
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise rows.error(row, f"time {_WANTED}, got {kind_of(value)}")
    if not FIRST_SECOND <= value < _END:  # NaN is not either
        raise rows.error(row, f"time {_RANGE}")
    whole = math.floor(value)
    return whole * _SECOND + round((value - whole) * _SECOND)


def times_from_column(column: pa.ChunkedArray, rows: Rows) -> Micros:
    """From a column of timestamps, dates, numbers or ISO 8601."""
    kind = column.type
    if column.null_count:
        rows.refuse_any(combined(column).is_null().to_numpy(zero_copy_only=False), "time is missing")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return times_from_values(column.to_pylist(), rows)
    if pa.types.is_date(kind):
        kind = pa.timestamp("s" if pa.types.is_date32(kind) else "ms")
        column = column.cast(kind)
    if pa.types.is_timestamp(kind):
        return _from_units(column.cast(pa.int64()).to_numpy(), _PER_SECOND[kind.unit], rows)
    if pa.types.is_integer(kind):
        return _from_units(column.to_numpy(), 1, rows)
    if pa.types.is_floating(kind):
        return _from_seconds(column.to_numpy().astype(np.float64), rows)
    if len(column) == 0:
        return np.empty(0, np.int64)
    raise DataError(f"time must be a column of timestamps, seconds since 1970 or ISO 8601, got {kind_of_column(kind)}")


def _from_units(found: np.ndarray[Any, Any], per_second: int, rows: Rows) -> Micros:
    rows.refuse_any((found < FIRST_SECOND * per_second) | (found >= _END * per_second), f"time {_RANGE}")
    units = found.astype(np.int64)
    return units * (_SECOND // per_second) if per_second <= _SECOND else units // (per_second // _SECOND)


def _from_seconds(found: np.ndarray[Any, np.dtype[np.float64]], rows: Rows) -> Micros:
    rows.refuse_any(~((found >= FIRST_SECOND) & (found < _END)), f"time {_RANGE}")
    whole = np.floor(found)  # apart, so that no digit of either part is lost
    return whole.astype(np.int64) * _SECOND + np.rint((found - whole) * _SECOND).astype(np.int64)


def check_not_ahead(times: Micros, max_future_seconds: int, rows: Rows) -> None:
    """Refuse events that are dated further ahead of the clock than is allowed."""
    rows.refuse_any(
        times > now() + max_future_seconds * _SECOND,
        f"time must be at most {max_future_seconds} seconds ahead of the clock",
    )
