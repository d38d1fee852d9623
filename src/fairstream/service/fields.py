"""Ids and times as they are kept: short strings, and whole microseconds since 1970 (UTC).

A complaint names the row and the field; what the field holds is not repeated, since it may say who somebody is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.tables import combined
from fairstream.errors import DataError
from fairstream.service.database import now

MAX_LENGTH = 256
_LONGEST_INTEGER = 10**MAX_LENGTH
_MOST_BYTES = 64 << 20
"""Of text in a column, which is what a body of the usual size could hold if each id were written in full."""
Micros = np.ndarray[Any, np.dtype[np.int64]]
_SECOND = 1_000_000
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_SECOND = int((datetime(1900, 1, 1, tzinfo=UTC) - _1970).total_seconds())
"""Of 1900, before which nothing can have happened."""
_END = int((datetime(9999, 12, 31, tzinfo=UTC) - _1970).total_seconds()) + 86_400
_WANTED = 'must be seconds since 1970 or ISO 8601, such as "2026-01-31T12:00:00Z"'
_RANGE = "must lie in the years 1900 to 9999, counted in seconds since 1970 where it is a number"
_PER_SECOND = {"s": 1, "ms": 1000, "us": _SECOND, "ns": 1000 * _SECOND}


class Rows(NamedTuple):
    """How rows are named: "event 1" is the first."""

    noun: str = "event"
    first: int = 1

    def error(self, row: int, said: str) -> DataError:
        return DataError(f"{self.noun} {self.first + row}: {said}")

    def refuse_any(self, bad: np.ndarray[Any, np.dtype[np.bool_]], said: str) -> None:
        """Raise for the first row that is bad, if one is."""
        if bad.any():
            raise self.error(int(bad.argmax()), said)


def kind_of(value: object) -> str:
    """What a JSON value is, in words; never the value itself, which may say who somebody is."""
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def ids_from_values(values: Sequence[Any], field: str, rows: Rows) -> pa.Array:
    """Strings, and whole numbers as their digits; None stays missing."""
    texts = [value if type(value) is str or value is None else _digits(value) for value in values]
    for row, (text, value) in enumerate(zip(texts, values, strict=True)):
        if text is None and value is not None:
            raise rows.error(row, f"{field} must be a string or a whole number, got {kind_of(value)}")
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        row = next(row for row, text in enumerate(texts) if text is not None and _is_broken(text))
        raise rows.error(row, f"{field} must be valid Unicode, got half of a surrogate pair") from None


def _digits(value: object) -> str | None:
    is_short_integer = type(value) is int and abs(value) < _LONGEST_INTEGER
    return str(value) if is_short_integer else None


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def ids_from_column(column: pa.ChunkedArray, field: str) -> pa.Array:
    """A column of strings or whole numbers as strings; the column is valid Arrow."""
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_integer(kind):
        return combined(column.cast(pa.string()))
    if _is_text(kind):
        _refuse_much(sum(int(_lengths(chunk).sum()) for chunk in column.chunks if _is_view(chunk)), field)
        return combined(pa.chunked_array([_plain(chunk) for chunk in column.chunks], pa.string()))
    if pa.types.is_dictionary(kind) and _is_text(kind.value_type):
        parts, n_bytes = [], 0
        for chunk in column.chunks:  # all is looked at before it is written out
            _refuse_much(int(_lengths(chunk.dictionary).sum()), field)
            words = _plain(chunk.dictionary)
            _refuse_long(words, field)
            n_bytes += _written_out(chunk.indices, _lengths(words))
            _refuse_much(n_bytes, field)
            parts.append(words.take(chunk.indices))
        return combined(pa.chunked_array(parts, pa.string()))
    raise DataError(f"{field} must be a column of strings or whole numbers, got {kind_of_column(kind)}")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_view(values: pa.Array) -> bool:
    return pa.types.is_string_view(values.type)


def _plain(values: pa.Array) -> pa.Array:
    if _is_view(values) and values.null_count:
        # What a view points to where a value is missing is anybody's guess, and Arrow's cast would go and look.
        return pa.array(values.to_pylist(), pa.string())
    return values.cast(pa.string())


def _refuse_long(values: pa.Array, field: str) -> None:
    longest = pc.max(pc.utf8_length(values)).as_py() or 0
    if longest > MAX_LENGTH:
        raise DataError(f"{field} must have at most {MAX_LENGTH} characters, got one of {longest}")


def kind_of_column(kind: pa.DataType) -> str:
    """A type for a sentence: without the names of its parts, which are whatever a client likes to write."""
    return kind.extension_name if isinstance(kind, pa.BaseExtensionType) else str(kind).split("<", maxsplit=1)[0]


def _lengths(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many bytes each text has."""
    if _is_view(texts) and len(texts):
        # A view is 16 bytes that begin with the length; pyarrow has no function that tells it.
        views = np.frombuffer(texts.buffers()[1], np.int32)[::4][texts.offset : texts.offset + len(texts)]
        return np.where(texts.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
    if not len(texts):
        return np.zeros(0, np.int64)
    found: np.ndarray[Any, Any] = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def _written_out(indices: pa.Array, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    places = indices.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
    return int(np.bincount(places, minlength=len(lengths)) @ lengths) if len(places) else 0


def _refuse_much(n_bytes: int, field: str) -> None:
    """A text that is named often takes the room of its name until it is written out."""
    if n_bytes > _MOST_BYTES:
        raise DataError(f"{field} must have at most {_MOST_BYTES >> 20} MiB of text in one batch; send it in several")


def check_ids(ids: pa.Array, field: str, rows: Rows) -> None:
    """Refuse what is missing, empty, too long, or has control characters."""
    if ids.null_count:
        rows.refuse_any(ids.is_null().to_numpy(zero_copy_only=False), f"{field} is missing")
    length = pc.utf8_length(ids).to_numpy(zero_copy_only=False)
    rows.refuse_any(length == 0, f"{field} must not be empty")
    if len(length) and length.max() > MAX_LENGTH:
        too_long = length > MAX_LENGTH
        found = length[too_long.argmax()]
        rows.refuse_any(too_long, f"{field} must have at most {MAX_LENGTH} characters, got {found}")
    if _may_hold_controls(ids):
        held = pc.match_substring_regex(ids, r"\p{Cc}").to_numpy(zero_copy_only=False)
        rows.refuse_any(held, f"{field} must not hold control characters")


def _may_hold_controls(ids: pa.Array) -> bool:
    """Whether any byte is one that a control character is written with: a look at all of them at once."""
    data = ids.buffers()[2]
    if data is None or not len(ids):
        return False
    offsets = np.frombuffer(ids.buffers()[1], np.int32)[ids.offset : ids.offset + len(ids) + 1]
    content = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return bool(((content < 0x20) | (content == 0x7F) | (content == 0xC2)).any())


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
