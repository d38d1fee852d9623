"""What comes in is taken whole or refused with one sentence, whichever way it is written."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairstream.data.reading import Columns
from fairstream.errors import DataError
from fairstream.service.incoming import (
    Rows,
    batch_from_arrow,
    batch_from_json,
    batches_from_file,
    parse_json,
    parse_json_lines,
    people_from_arrow,
    people_from_json,
)
from fairstream.service.settings import Limits

LIMITS = Limits()
NEVER_AHEAD = Limits(max_future_seconds=10**12)
FIELDS = ("user_id", "item_id", "time", "kind", "event_id")
EVENT = {"user_id": "u", "item_id": "i", "time": 0}

_text = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
_ids = _text | st.integers(-(2**63), 2**63 - 1)
_seconds = st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9)
_moments = st.datetimes(datetime(1900, 1, 1), datetime(2020, 1, 1)).map(datetime.isoformat)
_event_ids = st.none() | _text.filter(lambda text: not text.startswith("~"))
_kinds = st.none() | st.sampled_from(["event", "view", "purchase", "dislike"])
_events = st.fixed_dictionaries(
    {"user_id": _ids, "item_id": _ids, "time": _seconds | _moments}, optional={"event_id": _event_ids, "kind": _kinds}
)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FIELDS, "value", "x"]), inner),
    max_leaves=12,
)
_nearly_events = st.lists(st.fixed_dictionaries(dict.fromkeys(FIELDS[:3], _json)) | _events, max_size=3)


def from_lines(content: bytes, limits: Limits) -> pa.Table:
    """A batch of one JSON object a line."""
    return batch_from_json(parse_json_lines(content, Rows()), limits)


def taken(read: Callable[..., Any], *arguments: Any) -> Any:
    """What came of it, None where it was refused in one sentence."""
    with contextlib.suppress(DataError):
        return read(*arguments)
    with pytest.raises(DataError) as told:
        read(*arguments)
    assert "\n" not in str(told.value)
    return None


def same(one: pa.Table, other: pa.Table) -> bool:
    return bool(one.select(FIELDS).equals(other.select(FIELDS)))


@given(_json | _nearly_events)
@example([{**EVENT, "user_id": "\ud800"}])
@example([{**EVENT, "user_id": 10**5000}])
@example([{**EVENT, "time": 10**400}])
@example([{**EVENT, "time": float("nan")}])
@example([{**EVENT, "time": True}])
@example([{**EVENT, "time": "0001-01-01T00:00:00+23:59"}])
@example([{**EVENT, "event_id": "~mine"}])
@example([{1: 2}])
def test_any_json_value_is_taken_or_refused_in_a_sentence(value: Any) -> None:
    batch = taken(batch_from_json, value, LIMITS)
    if batch is not None:
        assert batch.column_names == ["event_id", "user_id", "item_id", "kind", "time"]
        assert [str(kind) for kind in batch.schema.types] == ["string"] * 4 + ["int64"]
        assert len(batch) == len(value)
        assert not any(column.null_count for column in batch.columns)


@given(
    st.binary() | st.text().map(str.encode) | st.lists(_json, max_size=3).map(lambda all_: json.dumps(all_).encode())
)
@example(b"[" * 100_000)
@example(b"1" * 5000)
def test_any_bytes_are_taken_or_refused_in_a_sentence(content: bytes) -> None:
    for read in (
        from_lines,
        lambda it, limits: batch_from_json(parse_json(it, "x"), limits),
    ):
        taken(read, content, LIMITS)


@given(st.lists(_events, max_size=8), st.data())
def test_the_same_events_make_the_same_batch_however_they_are_written(events: list[Any], data: st.DataObject) -> None:
    batch = batch_from_json(events, LIMITS)
    assert same(batch, from_lines("\n\n".join(map(json.dumps, events)).encode(), LIMITS))
    columns: dict[str, Any] = {name: [event.get(name) for event in events] for name in FIELDS}
    for name in ("user_id", "item_id"):
        columns[name] = pa.array([str(value) for value in columns[name]], data.draw(st.sampled_from(TEXTS)))
    micros = batch["time"]
    unit = data.draw(st.sampled_from(["us", "ns"]))
    columns["time"] = micros if unit == "us" else pa.array(micros.to_numpy() * 1000)
    columns["time"] = columns["time"].cast(pa.timestamp(unit, data.draw(st.sampled_from([None, "UTC", "Asia/Tokyo"]))))
    columns |= {name: pa.array(columns[name], pa.string()) for name in ("event_id", "kind")}
    table = pa.table(columns)
    assert same(batch, batch_from_arrow(table, LIMITS))


TEXTS = (pa.string(), pa.large_string())


@given(st.lists(_seconds, min_size=1))
def test_numbers_are_seconds_in_json_and_in_arrow(seconds: list[float]) -> None:
    events = [{**EVENT, "time": second} for second in seconds]
    table = pa.table({"user_id": ["u"] * len(seconds), "item_id": ["i"] * len(seconds), "time": np.float64(seconds)})
    assert same(batch_from_json(events, LIMITS), batch_from_arrow(table, LIMITS))
    whole = [math.floor(second) for second in seconds]
    table = table.set_column(2, "time", pa.array(whole, pa.int64()))
    assert same(
        batch_from_json([{**EVENT, "time": second} for second in whole], LIMITS), batch_from_arrow(table, LIMITS)
    )


@given(st.datetimes(datetime(1900, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)), st.integers(-23, 23))
def test_a_moment_is_the_same_in_every_zone(moment: datetime, hours: int) -> None:
    elsewhere = (moment.replace(tzinfo=None) + timedelta(hours=hours)).isoformat() + f"{hours:+03}:00"
    texts = [moment.isoformat(), moment.isoformat().replace("+00:00", "Z"), moment.isoformat()[:-6], elsewhere]
    batch = batch_from_json([{**EVENT, "time": text} for text in texts], NEVER_AHEAD)
    assert set(batch["time"].to_pylist()) == {(moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)}


@given(st.lists(_events, min_size=1, max_size=8))
def test_an_event_without_an_id_gets_one_of_its_own(events: list[Any]) -> None:
    bare = [{**{name: event[name] for name in FIELDS[:3]}, "kind": event.get("kind")} for event in events]
    table = batch_from_json(bare, LIMITS)
    ids = table["event_id"].to_pylist()
    contents = list(zip(*(table[name].to_pylist() for name in FIELDS[:4]), strict=True))
    assert len(set(ids)) == len(set(contents))
    assert len(set(zip(ids, contents, strict=True))) == len(set(ids))
    assert all(len(made) == 33 and made[0] == "~" for made in ids)


LONG = "a" * 257


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"user_id": ""}, "event 3: user_id must not be empty"),
        ({"item_id": LONG}, "event 3: item_id must have at most 256 characters, got 257"),
        ({"user_id": "a\x00"}, "event 3: user_id must not hold control characters"),
        ({"user_id": "a\x85"}, "event 3: user_id must not hold control characters"),
        ({"user_id": None}, "event 3: user_id is missing"),
        ({"time": None}, "event 3: time is missing"),
        ({"time": 1.7e12}, "event 3: time must lie in the years 1900 to 9999"),
        ({"time": 4e9}, "event 3: time must be at most 300 seconds ahead of the clock"),
        ({"event_id": "~1"}, "event 3: event_id must not begin with ~"),
    ],
)
def test_a_complaint_names_the_event_and_the_field(change: dict[str, Any], said: str) -> None:
    events = [{**EVENT, "time": 0.0, "event_id": str(n), **(change if n >= 2 else {})} for n in range(5)]
    columns = {name: [event.get(name) for event in events] for name in FIELDS}
    for read in (
        lambda: batch_from_json(events, LIMITS),
        lambda: from_lines("\n".join(map(json.dumps, events)).encode(), LIMITS),
        lambda: batch_from_arrow(pa.table(columns), LIMITS),
    ):
        with pytest.raises(DataError, match=said):
            read()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"user_id": [1.5], "item_id": ["i"], "time": [0]}, "ids must be integers or strings"),
        ({"user_id": [b"u"], "item_id": ["i"], "time": [0]}, "user_id must be a column of strings or whole numbers"),
        ({"user_id": ["u"], "item_id": ["i"], "time": [True]}, "time must be a column of timestamps"),
    ],
)
def test_columns_that_do_not_fit_are_named(table: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        batch_from_arrow(pa.table(table), LIMITS)


def test_text_that_is_not_unicode_is_refused() -> None:
    broken = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(DataError, match="cannot be read"):
        batch_from_arrow(pa.table({"user_id": broken, "item_id": ["i"], "time": [0]}), LIMITS)


@given(_json)
def test_people_are_taken_or_refused_in_a_sentence(value: Any) -> None:
    table = taken(people_from_json, value)
    if table is not None:
        assert table.column_names == ["user_id", "value"]
        assert table.equals(people_from_arrow(table))


def test_names_of_parts_of_a_type_are_not_said_again() -> None:
    with pytest.raises(DataError) as caught:
        batch_from_arrow(pa.table({"user_id": [{"a\nb": 1}], "item_id": ["i"], "time": [1]}), LIMITS)
    assert str(caught.value).isprintable()


def test_a_column_name_with_line_breaks_stays_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"a\\nb": "u", "item_id": "i", "time": 1}\n')
    with pytest.raises(DataError) as caught:
        list(batches_from_file(file, Columns(), LIMITS))
    assert "a b, item_id, time" in str(caught.value)


def test_a_file_with_an_id_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    events = [{**EVENT, "event_id": "e"}, {**EVENT, "event_id": float("nan")}]
    file.write_text("\n".join(map(json.dumps, events)))
    with pytest.raises(DataError, match="NaN is not JSON"):
        list(batches_from_file(file, Columns(), LIMITS))
