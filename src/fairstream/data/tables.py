"""From Arrow tables to ids and times that have been checked."""

from __future__ import annotations

import lzma
import re
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fairstream.errors import ConfigurationError, DataError

Repeats = Literal["first", "all"]
SUFFIXES = (".parquet", ".csv", ".arrow")
TIME_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
"""Microseconds in each unit that times can be counted in."""
_EMPTY_IS_MISSING = {"strings_can_be_null": True, "quoted_strings_can_be_null": True, "null_values": [""]}
_USUAL_NAMES = {
    "user": ("user_id", "user", "userid", "uid", "customer_id", "member_id", "visitor_id"),
    "item": ("item_id", "item", "itemid", "iid", "movie_id", "movieid", "product_id", "article_id"),
    "time": ("timestamp", "time", "datetime", "date", "event_time", "created_at", "ts", "order"),
    "rating": ("rating", "stars"),
}
_EVENTS_TABLE = "the events table"


@dataclass(frozen=True)
class Columns:
    """How to read events.

    Parameters
    ----------
    user, item, time, rating
        Names of the columns; None: a usual name is recognised.
    rating_above
        Only events with a rating above this are kept.
    time_unit
        Unit of times that are numbers: "s", "ms", "us" or "ns" since 1970. They then become
        timestamps; without a unit they stay numbers.
    repeats
        Of the events of one user with one item, "first" keeps the first alone, "all" keeps all.
    time_zone
        Whether the times had a time zone, where events have been read.
    text_ids
        The roles, user and item, whose ids have been text: digits in a text file are text there, too.
    """

    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None
    rating_above: float = 2.0
    time_unit: str | None = None
    repeats: Repeats = "first"
    time_zone: bool | None = None
    text_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text_ids", tuple(self.text_ids))  # JSON has lists
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            raise ConfigurationError(f"time_unit must be one of {', '.join(TIME_UNITS)}, got {self.time_unit!r}")
        if self.repeats not in get_args(Repeats):
            raise ConfigurationError(f"repeats must be 'first' or 'all', got {self.repeats!r}")

    def find(self, role: str, table: pa.Table, *, what: str) -> str:
        """Return the column of `table` that plays `role`; raise DataError where there is none."""
        name = self.find_optional(role, table, what=what)
        if name is None:
            usual = ", ".join(_USUAL_NAMES[role][:4])
            raise DataError(
                f"{what} needs {'an' if role == 'item' else 'a'} {role} column ({usual} …), "
                f"but has only {', '.join(table.column_names) or 'no columns'}; name it with {role}_column "
                f"(on the command line: --{role}-column)"
            )
        return name

    def find_optional(self, role: str, table: pa.Table, *, what: str) -> str | None:
        """As `find`, but return None where no column has a usual name."""
        given: str | None = getattr(self, role)
        if given is not None:
            if given not in table.column_names:
                raise DataError(f"{what} has no column {given!r}; its columns are {', '.join(table.column_names)}")
            return given
        by_lower_case = {name.lower(): name for name in reversed(table.column_names)}
        name = next((by_lower_case[usual] for usual in _USUAL_NAMES[role] if usual in by_lower_case), None)
        if role == "time" and name is not None and name.lower() == "order":
            return _time_rather_than_order(name, table, what)
        return name

    def with_text_ids(self, table: pa.Table) -> pa.Table:
        """Return the table of a text file with ids as text where they have been text before."""
        named = [role for role in self.text_ids if getattr(self, role) in (None, *table.column_names)]
        return integers_as_text(table, {self.find_optional(role, table, what=_EVENTS_TABLE) for role in named})


def _time_rather_than_order(order: str, table: pa.Table, what: str) -> str:
    """Return the only column that holds times or is named after them, else the order's number."""
    times = [
        field.name
        for field in table.schema
        if pa.types.is_temporal(field.type) or field.name.lower().endswith(("time", "date", "timestamp", "_at", "_ts"))
    ]
    if len(times) > 1:
        raise DataError(
            f"{what} has the column {order!r} and several columns with times ({', '.join(times)}); "
            f"name the one that counts with time_column (on the command line: --time-column)"
        )
    return times[0] if times else order


class EventParser:
    """Parses tables of raw events: keeps those whose rating counts, and converts and checks their columns.

    What is missing is counted over all tables, and reported by `notes`.
    """

    def __init__(self, like: pa.Table, columns: Columns) -> None:
        """`like` is a table, maybe without rows, with the columns of all tables to be parsed."""
        self.names = {role: columns.find(role, like, what=_EVENTS_TABLE) for role in ("user", "item", "time")}
        self.rating = columns.find_optional("rating", like, what=_EVENTS_TABLE)
        self._columns = columns
        order = next((name for name in like.column_names if name.lower() == "order"), None)
        self._passed_over = order if columns.time is None and self.names["time"] != order else None
        self._n_events = self._n_kept = self._n_unrated = 0
        self._time_zone: bool | None = None
        self._n_missing = dict.fromkeys(self.names, 0)

    @property
    def used(self) -> set[str]:
        """The names of the columns that are read."""
        return {*self.names.values(), *(() if self.rating is None else (self.rating,))}

    def parse(self, events: pa.Table) -> tuple[pa.Array, pa.Array, np.ndarray[Any, Any]]:
        """Return the ids of the users, those of the items, and the times."""
        self._n_events += len(events)
        if self.rating is not None:
            ratings = _ratings(events[self.rating], self.rating)
            self._n_unrated += pc.sum(pc.is_null(ratings, nan_is_null=True)).as_py() or 0
            events = events.filter(pc.greater(ratings, self._columns.rating_above))
        self._n_kept += len(events)
        for role, name in self.names.items():
            self._n_missing[role] += events[name].null_count
        if any(self._n_missing.values()):
            events = events.slice(0, 0)  # there will be no log; the missing values are still counted
        user, item, time = (events[name] for name in self.names.values())
        time = _from_text(time, self.names["time"])
        if len(time) and pa.types.is_timestamp(time.type):
            self._time_zone = bool(self._time_zone) or time.type.tz is not None
        times = _times(time, self.names["time"])
        return combined(user), combined(item), _in_unit(times, self._columns.time_unit, self.names["time"])

    def add(self, other: EventParser) -> None:
        """Count what another one has parsed, too: other tables with the same columns."""
        self._n_events += other._n_events
        self._n_kept += other._n_kept
        self._n_unrated += other._n_unrated
        self._n_missing = {role: n + other._n_missing[role] for role, n in self._n_missing.items()}
        if other._time_zone is not None:
            self._time_zone = bool(self._time_zone) or other._time_zone

    @property
    def columns(self) -> Columns:
        """How the events were read, for those that come later."""
        return replace(self._columns, time_zone=self._time_zone)

    def notes(self) -> tuple[str, ...]:
        """Return what was left out; raise DataError where an event lacks a user, an item or a time."""
        n, kept, rated = self._n_events, self._n_kept, f"{self.rating} > {self._columns.rating_above:g}"
        if self.rating is not None and n > 0 == kept:
            raise DataError(f"none of the {n} events has {rated}; lower rating_above")
        for role, name in self.names.items():
            if missing := self._n_missing[role]:
                needed = "an item" if role == "item" else f"a {role}"
                raise DataError(f"every event needs {needed}, but {missing} of {kept} are missing in {name!r}")
        unrated = f" ({self._n_unrated} have no rating)" if self._n_unrated else ""
        notes = () if self.rating is None else (f"{kept} of {n} events have {rated} and are kept{unrated}",)
        if self._passed_over is None:
            return notes
        return (*notes, f"the events are ordered by {self.names['time']!r} and not by {self._passed_over!r}")


def _ratings(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    try:
        return column.cast(pa.float64())
    except pa.ArrowException:
        raise DataError(f"ratings must be numbers, but {name!r} holds {column.type}; convert it first") from None


def _from_text(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return times that are written as text as timestamps, or as the numbers that they are; others stay."""
    if not is_text(column.type) or len(column) == 0:
        return column
    failure = ""
    stamps = (pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))
    for kind in (pa.int64(), *stamps):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid as error:
            shown = re.search(r"string: '(.*?)' as", str(error))
            failure = f", {shown[1]!r} for one" if shown else ""
    raise DataError(
        f"times that are text must be ISO 8601, all with a time zone or all without, such as 2024-05-01T12:30:00Z, but "
        f"{name!r} holds others{failure}; convert it first"
    )


def _times(column: pa.ChunkedArray, name: str) -> np.ndarray[Any, Any]:
    """Return integers, floats or timestamps as a NumPy array that sorts."""
    kind = column.type
    if len(column) == 0:
        return np.empty(0)
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us"))
    elif pa.types.is_timestamp(kind) or pa.types.is_integer(kind):
        target = pa.int64() if pa.types.is_integer(kind) else pa.timestamp("us", tz=kind.tz)
        try:
            column = pc.cast(column, options=pc.CastOptions(target, allow_time_truncate=True))
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


def _in_unit(times: np.ndarray[Any, Any], unit: str | None, name: str) -> np.ndarray[Any, Any]:
    """Return numbers as timestamps where their unit is given; timestamps stay what they are."""
    if unit is None or times.dtype.kind == "M":
        return times
    if (np.abs(times.astype(np.float64)) * TIME_UNITS[unit] >= 2**63).any():
        raise DataError(f"the times in {name!r} are out of range for time_unit={unit!r}")
    if times.dtype.kind == "f":
        return np.floor(times * TIME_UNITS[unit]).astype(np.int64).astype("datetime64[us]")
    return times.astype(f"datetime64[{unit}]").astype("datetime64[us]")


# ── reading ──────────────────────────────────────────────────────────────────────────────


@contextmanager
def reading(what: str, name: str | Path | None = None, kind: str = "") -> Iterator[None]:
    """Turn failures to read a frame, or the file `name` as `kind`, in the block into a DataError."""
    subject = f"{what} cannot be read as an Arrow table" if name is None else f"{what}: {name} cannot be read as {kind}"
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError:
        raise DataError(f"{subject}: it is not UTF-8 text; save it as UTF-8") from None
    except FileNotFoundError as error:
        raise DataError(f"{what}: there is no file {name or error.filename}") from None
    except (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile, lzma.LZMAError, ValueError) as error:
        # ValueError: such as JSON that is none
        raise DataError(f"{subject}: {first_sentence(error)}") from None


@contextmanager
def open_source(source: str | Path, what: str) -> Iterator[None]:
    """Failures to read a Parquet, CSV or Arrow file in the block become a DataError."""
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{what}: there is no file {path}")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{what}: {path.name} must end in {' or '.join(SUFFIXES)}")
    with reading(what, path, path.suffix[1:]):
        yield


def read_csv(source: Any, *, types: dict[str, pa.DataType] | None = None, **options: Any) -> pa.Table:
    """Read a CSV file in which an empty field is a missing value."""
    return pyarrow.csv.read_csv(source, convert_options=csv_conversion(types), **options)


def csv_conversion(
    types: dict[str, pa.DataType] | None = None, names: list[str] | None = None, decimal_point: str = "."
) -> Any:
    """Return how the fields of a CSV file are read; `names` are the columns to read, where not all are."""
    return pyarrow.csv.ConvertOptions(
        column_types=types, include_columns=names, decimal_point=decimal_point, **_EMPTY_IS_MISSING
    )


def first_sentence(error: Exception) -> str:
    """Return another library's message without the advice that follows it."""
    message = ", ".join(map(str, error.args))
    return message.splitlines()[0].split(". ")[0].rstrip(".")


def decoded(table: pa.Table, what: str) -> pa.Table:
    """Return the same table with dictionaries and string views as plain strings."""
    twice = next((name for name in table.column_names if table.column_names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{what} have the column {twice!r} more than once; keep one of them")
    return pa.table({name: _decoded_column(table[name]) for name in table.column_names})


def _decoded_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        parts = [_plain_strings(part.dictionary).take(part.indices) for part in column.chunks]
        return pa.chunked_array(parts, None if parts else pa.large_string())
    return _plain_strings(column)


def _plain_strings(values: Any) -> Any:
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def integers_as_text(table: pa.Table, names: Collection[str | None]) -> pa.Table:
    """Return the table with those of the named columns that hold integers as text."""
    for at, field in enumerate(table.schema):
        if field.name in names and pa.types.is_integer(field.type):
            table = table.set_column(at, field.name, table[field.name].cast(pa.large_string()))
    return table


def combined(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array."""
    chunk = column.combine_chunks()
    return chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks)
