"""Events and users from JSON, Arrow tables and files, checked before they are stored.

A batch is accepted or refused as a whole: a table of event_id, user_id, item_id and kind (short strings) and time
(whole microseconds since 1970, UTC) without nulls. The error names the first bad row and its field, and never the
value, which may identify a person.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.events import EventParser, open_events
from fairstream.data.groups import group_parts, intersection
from fairstream.data.reading import Columns, combined, first_sentence, is_text, open_source
from fairstream.data.vocabulary import id_column
from fairstream.errors import DataError
from fairstream.reporting import report
from fairstream.service.database import now
from fairstream.service.settings import FILE, EventKinds, Limits

MAX_LENGTH = 256  # characters of an id
MAX_ROWS = 100_000  # the events of a batch from a file, which is stored in one transaction
_ROLES = {"user_id": "user", "item_id": "item", "time": "time"}
_IDS = ("event_id", "user_id", "item_id", "kind")
_KINDS = EventKinds()
_PEOPLE = pa.schema([("user_id", pa.string()), ("value", pa.string())])
_GENERATED = "~"  # the prefix of event ids that the service generates
_MAX_INTEGER = 1 << 63
_SECOND = 1_000_000
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_START = int((datetime(1900, 1, 1, tzinfo=UTC) - _1970).total_seconds())
_END = int((datetime(9999, 12, 31, tzinfo=UTC) - _1970).total_seconds()) + 86_400
_FORMATS = 'must be seconds since 1970 or ISO 8601, such as "2026-01-31T12:00:00Z"'
_RANGE = "must lie in the years 1900 to 9999, counted in seconds since 1970 where it is a number"
_Micros = np.ndarray[Any, np.dtype[np.int64]]


class Rows(NamedTuple):
    """How errors name rows: "event 1" is the first."""

    noun: str = "event"
    first: int = 1

    def error(self, row: int, sentence: str) -> DataError:
        return DataError(f"{self.noun} {self.first + row}: {sentence}")

    def refuse_any(self, bad: np.ndarray[Any, np.dtype[np.bool_]], sentence: str) -> None:
        if bad.any():
            raise self.error(int(bad.argmax()), sentence)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────


def batch_from_json(objects: Any, limits: Limits, kinds: EventKinds = _KINDS) -> pa.Table:
    """From a JSON list of objects with `user_id`, `item_id`, `time` and, optionally, `kind` and `event_id`."""
    rows = Rows()
    columns = _columns_of(objects, (*_ROLES, "kind", "event_id"), rows)
    ids = {name: ids_from_values(columns[name], name, rows) for name in _IDS}
    return _batch(ids, _times_from_values(columns["time"], rows), limits, kinds, rows)


def people_from_json(objects: Any, *, value: str = "value", allowed: Collection[str] | None = None) -> pa.Table:
    """From a JSON list of objects with `user_id` and the field that `value` names."""
    rows, names = Rows("user"), ("user_id", value)
    columns = _columns_of(objects, names, rows)
    return _people({name: ids_from_values(columns[name], name, rows) for name in names}, rows, allowed)


def parse_json(content: bytes | str, what: str) -> Any:
    """Parse JSON; raise a `DataError` of one sentence if it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of too many digits, too deep
        where = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{what}: this is not JSON{where}") from None


def parse_json_lines(content: bytes, rows: Rows) -> list[Any]:
    """Parse each line as JSON; empty lines are ignored."""
    lines = [line for line in content.split(b"\n") if line.strip()]
    return [parse_json(line, f"{rows.noun} {number}") for number, line in enumerate(lines, start=rows.first)]


def checked_objects(objects: Any, rows: Rows) -> list[dict[str, Any]]:
    """Return a JSON list of objects; raise a `DataError` if it is something else."""
    if not isinstance(objects, list):
        raise DataError(f"expected a JSON list of objects, one for each {rows.noun}, got {_kind_of(objects)}")
    for row, fields in enumerate(objects):
        if not isinstance(fields, dict):
            raise rows.error(row, f"expected a JSON object, got {_kind_of(fields)}")
    return objects


def _columns_of(objects: Any, names: Collection[str], rows: Rows) -> dict[str, list[Any]]:
    """Return the values of each field of JSON objects; a missing field is None."""
    all_fields, known = checked_objects(objects, rows), {*names}
    for row, fields in enumerate(all_fields):
        if not fields.keys() <= known:
            unknown = min(map(str, fields.keys() - known))
            raise rows.error(row, f"{unknown[:40]!r} is not a field; the fields are {', '.join(names)}")
    return {name: [fields.get(name) for fields in all_fields] for name in names}


def _kind_of(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def ids_from_values(values: Sequence[Any], field: str, rows: Rows) -> pa.Array:
    """Strings, and whole numbers as their digits (3.0 is 3, as in JSON Schema); None stays missing."""
    texts = [str(int(value)) if type(value) in (int, float) and _is_whole(value) else value for value in values]
    try:
        return pa.array(texts, pa.string())
    except (pa.ArrowException, UnicodeEncodeError):
        for row, text in enumerate(texts):
            if not isinstance(text, str | None):
                raise rows.error(row, f"{field} must be a string or a whole number, got {_kind_of(text)}") from None
            if text is not None and any("\ud800" <= letter <= "\udfff" for letter in text):
                raise rows.error(row, f"{field} must be valid Unicode, got half of a surrogate pair") from None
        raise


def _is_whole(value: float) -> bool:
    return -_MAX_INTEGER <= value < _MAX_INTEGER and value == int(value)


def _times_from_values(values: Iterable[Any], rows: Rows) -> _Micros:
    return np.array([micros_of(value, row, rows) for row, value in enumerate(values)], dtype=np.int64)


def micros_of(value: Any, row: int, rows: Rows) -> int:
    """Return a time in microseconds since 1970, from seconds or ISO 8601."""
    if value is None:
        raise rows.error(row, "time is missing")
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise rows.error(row, f"time {_FORMATS}, got a string that is neither") from None
        micros = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _1970) // timedelta(microseconds=1)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise rows.error(row, f"time {_FORMATS}, got {_kind_of(value)}")
    elif _START <= value < _END:  # False for NaN
        whole = math.floor(value)
        micros = whole * _SECOND + round((value - whole) * _SECOND)
    else:
        micros = -_END * _SECOND
    if not _START * _SECOND <= micros < _END * _SECOND:
        raise rows.error(row, f"time {_RANGE}")
    return micros


# ── Arrow tables and files ───────────────────────────────────────────────────────────────


def batch_from_arrow(table: pa.Table, limits: Limits, kinds: EventKinds = _KINDS, *, first: int = 1) -> pa.Table:
    """From a table with the columns `user_id`, `item_id`, `time` and, optionally, `kind` and `event_id`."""
    rows = Rows(first=first)
    for name in {"kind", "event_id"} - {*table.column_names}:
        table = table.append_column(name, pa.nulls(len(table)))
    ids = _ids_from_table(table, _IDS, "events")
    return _batch(ids, _times_from_column(table["time"], rows), limits, kinds, rows)


def people_from_arrow(table: pa.Table, *, first: int = 1, allowed: Collection[str] | None = None) -> pa.Table:
    """From a table with the columns `user_id` and `value`."""
    return _people(_ids_from_table(table, ("user_id", "value"), "users"), Rows("user", first), allowed)


def batches_from_file(
    source: str | Path, columns: Columns, limits: Limits, kinds: EventKinds = _KINDS, event_id: str | None = None
) -> Iterator[pa.Table]:
    """Yield the events of a file, folder, glob or address, as `read_events` reads them.

    `event_id` is the column of the events' ids; None: `event_id`, if there is such a column.
    """
    with _naming(source):
        events, _ = open_events(source, None, columns)
        parser, existing = EventParser(events.like, columns), events.like.column_names
        names = {name: parser.names[role] for name, role in _ROLES.items()}
        if (kind := columns.find_optional("kind", events.like, what="the events table")) is not None:
            names["kind"] = kind
        if event_id is not None or "event_id" in existing:
            names["event_id"] = event_id or "event_id"
            if names["event_id"] not in existing:
                raise DataError(f"there is no column {event_id!r}; the columns are {', '.join(existing)}")
        n = 1
        for table in events.tables({*parser.used, *names.values()}):
            rated = parser.keep_rated(table)
            for start in range(0, len(rated), MAX_ROWS):
                part = rated.slice(start, MAX_ROWS)
                block = {name: part[column] for name, column in names.items()}
                block["time"] = parser.to_times(block["time"])
                yield batch_from_arrow(pa.table(block), limits, kinds, first=n)
                n += len(part)
        report(parser.notes())


def people_from_file(
    source: str | Path, columns: Columns, group: str, allowed: Collection[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the users of a file and their values in the column `group`, without users who have none."""
    n = 1
    with _naming(source):
        users = open_source(source, "the users")
        user = columns.find("user", users.like, what="the users table")
        parts = group_parts(users.like, group, what="the users table")
        for table in users.tables([user, *parts]):
            values = intersection([table[name] for name in parts])
            people = pa.table({"user_id": table[user], "value": values}).filter(pc.is_valid(values))
            yield people_from_arrow(people, first=n, allowed=allowed)
            n += len(table)


@contextmanager
def _naming(source: str | Path) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        prefix = "" if str(source) in str(error) else f"{source}: "
        raise DataError(f"{prefix}{error}") from None


def _ids_from_table(table: pa.Table, names: Sequence[str], what: str) -> dict[str, pa.Array]:
    try:
        table.validate(full=True)  # a file may have wrong offsets or invalid UTF-8
        return {name: _ids_from_column(table[name], name) for name in names}
    except pa.ArrowException as error:
        raise DataError(f"the {what} cannot be read: {first_sentence(error)}") from None


def _ids_from_column(column: pa.ChunkedArray, field: str) -> pa.Array:
    ids = combined(column)
    if pa.types.is_floating(ids.type) and not ids.null_count:
        ids = id_column(ids)
    kind = ids.type
    if not (pa.types.is_null(kind) or pa.types.is_integer(kind) or is_text(kind)):
        raise DataError(f"{field} must be a column of strings or whole numbers, got {_name_of(kind)}")
    return ids.cast(pa.string())


def _name_of(kind: pa.DataType) -> str:
    return kind.extension_name if isinstance(kind, pa.BaseExtensionType) else str(kind).split("<", maxsplit=1)[0]


def _times_from_column(column: pa.ChunkedArray, rows: Rows) -> _Micros:
    kind = column.type
    if column.null_count:
        rows.refuse_any(_to_numpy(combined(column).is_null()), "time is missing")
    if is_text(kind) or len(column) == 0:
        return _times_from_values(column.to_pylist(), rows)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        target = pa.timestamp("us", getattr(kind, "tz", None))
        try:
            micros = column.cast(options=pc.CastOptions(target_type=target, allow_time_truncate=True))
        except pa.ArrowInvalid:  # beyond 64 bits
            raise DataError(f"time {_RANGE}") from None
        times: _Micros = micros.cast(pa.int64()).to_numpy()
        rows.refuse_any((times < _START * _SECOND) | (times >= _END * _SECOND), f"time {_RANGE}")
        return times
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"time must be a column of timestamps, seconds since 1970 or ISO 8601, got {_name_of(kind)}")
    seconds = column.to_numpy().astype(np.float64)  # integers of this range are exact
    rows.refuse_any(~((seconds >= _START) & (seconds < _END)), f"time {_RANGE}")  # NaN, too
    whole = np.floor(seconds)  # separate, so that neither part loses a digit
    return whole.astype(np.int64) * _SECOND + np.rint((seconds - whole) * _SECOND).astype(np.int64)


# ── checks ───────────────────────────────────────────────────────────────────────────────


def _batch(ids: dict[str, pa.Array], times: _Micros, limits: Limits, kinds: EventKinds, rows: Rows) -> pa.Table:
    given, ahead = ids["event_id"], limits.max_future_seconds
    for name in ("user_id", "item_id"):
        check_ids(ids[name], name, rows)
    ids["kind"] = ids["kind"].fill_null(kinds.default)
    if (unknown := pc.invert(pc.is_in(ids["kind"], pa.array(kinds.kinds, pa.string())))).true_count:
        rows.refuse_any(_to_numpy(unknown), f"kind must be one of {', '.join(kinds.kinds)} ([events] in {FILE})")
    rows.refuse_any(times > now() + ahead * _SECOND, f"time must be at most {ahead} seconds ahead of the clock")
    is_reserved = _to_numpy(pc.starts_with(given, _GENERATED).fill_null(False))
    rows.refuse_any(is_reserved, f"event_id must not begin with {_GENERATED}, which marks generated ids")
    if given.null_count:
        missing = given.is_null()
        users, items, own = (ids[name].filter(missing).to_pylist() for name in ("user_id", "item_id", "kind"))
        generated = map(_generate_id, users, items, times[_to_numpy(missing)].tolist(), own)
        ids["event_id"] = pc.replace_with_mask(given, missing, pa.array(generated, pa.string()))
    check_ids(ids["event_id"], "event_id", rows)
    return pa.table({**ids, "time": times})


def _generate_id(user_id: str, item_id: str, time: int, kind: str) -> str:
    """Return the id of an event that came without one; the same event, sent again, gets the same id.

    It begins with the time, so that events of one time are neighbours in the database's index. Random ids would
    write to all of its pages for each batch.
    """
    content = f"{user_id}\n{item_id}\n{time}\n{kind}"  # unambiguous: ids hold no control characters
    since = time // 1000 - _START * 1000
    return f"{_GENERATED}{since:012x}{hashlib.sha256(content.encode()).hexdigest()[:20]}"


def _people(columns: dict[str, pa.Array], rows: Rows, allowed: Collection[str] | None) -> pa.Table:
    for name, column in columns.items():
        check_ids(column, name, rows)
    if allowed is not None:
        name, values = list(columns.items())[1]
        unknown = pc.invert(pc.is_in(values, pa.array(allowed, pa.string())))
        rows.refuse_any(_to_numpy(unknown), f"{name} must be one of {', '.join(allowed)}")
    return pa.table(list(columns.values()), schema=_PEOPLE)


def check_ids(ids: pa.Array, field: str, rows: Rows) -> None:
    """Refuse ids that are missing, empty or too long, or that hold control characters."""
    if ids.null_count:
        rows.refuse_any(_to_numpy(ids.is_null()), f"{field} is missing")
    length = _to_numpy(pc.utf8_length(ids))
    rows.refuse_any(length == 0, f"{field} must not be empty")
    if (too_long := length > MAX_LENGTH).any():
        n = length[too_long.argmax()]
        rows.refuse_any(too_long, f"{field} must have at most {MAX_LENGTH} characters, got {n}")
    has_controls = _to_numpy(pc.match_substring_regex(ids, r"\p{Cc}"))
    rows.refuse_any(has_controls, f"{field} must not hold control characters")


def _to_numpy(values: Any) -> Any:
    return values.to_numpy(zero_copy_only=False)
