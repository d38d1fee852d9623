"""What is ingested a piece at a time is what is read at once; a folder holds a whole log or none."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream
from fairstream import ConfigurationError, DataError, EventLog, ingest, read_events
from fairstream.data.reading import concat
from support import make_recommender

NOON = dt.datetime(2024, 5, 1, 12)
TIMES: dict[str, Callable[[int], Any]] = {
    "integers": lambda n: n,
    "floats": lambda n: n / 7,
    "moments": lambda n: NOON + dt.timedelta(seconds=n),
    "days": lambda n: (NOON + dt.timedelta(days=n)).date(),
}


def test_the_groups_of_many_parts_cost_about_as_much_as_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_rows = 0

    def counted(tables: Any, what: str) -> pa.Table:
        nonlocal n_rows
        n_rows += sum(map(len, tables))
        return concat(tables, what)

    monkeypatch.setattr(import_module("fairstream.data.ingest"), "concat", counted)
    parts = [{"user": [2 * n, 2 * n + 1], "item": [n, n], "time": [n, n], "side": ["a", "b"]} for n in range(100)]
    log = ingest(map(pa.table, parts), tmp_path / "log", group="side")
    assert log.groups is not None
    assert log.groups.codes.tolist() == [0, 1] * 100
    assert n_rows < 200 * 10  # n log n; to group all pairs again with each part takes 10,100


@st.composite
def event_tables(draw: st.DrawFn) -> pa.Table:
    """Events with repeats and ties, in order or not, with ratings or without; each user has a side or none."""
    n = draw(st.integers(1, 40))
    numbers = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    times = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    if draw(st.booleans()):
        times.sort()
    sides = draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=10, max_size=10))
    kind = TIMES[draw(st.sampled_from(sorted(TIMES)))]
    columns = {
        "user": [f"user {number}" for number in numbers] if draw(st.booleans()) else numbers,
        "unrelated": [f"{number}!" for number in numbers],
        "item": draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)),
        "time": [kind(time) for time in times],
        "side": pa.array([sides[number] for number in numbers], pa.string()),
    }
    if draw(st.booleans()):
        columns["rating"] = draw(st.lists(st.sampled_from([1, 3, 5]), min_size=n, max_size=n))
    return pa.table(columns)


def everything(log: EventLog) -> dict[str, Any]:
    groups = log.groups
    return {
        "columns": [log.users.tolist(), log.items.tolist(), log.times.tolist()],
        "types": [log.users.dtype, log.items.dtype, log.times.dtype],
        "ids": [log.user_ids.ids.to_pylist(), log.item_ids.ids.to_pylist()],
        "kinds": [log.user_ids.ids.type, log.item_ids.ids.type],
        "groups": groups and (groups.attribute, groups.names, groups.codes.tolist(), groups.choice),
        "codes": groups and groups.codes.dtype,
        "read": (log.columns, log.notes),
        "fingerprint": log.fingerprint(),
    }


def content(reading: Callable[[], EventLog]) -> Any:
    """What the log holds, or the sentence that says why there is none."""
    try:
        return everything(reading())
    except DataError as error:
        return str(error)


def to_csv(table: pa.Table, path: Path) -> Path:
    pyarrow.csv.write_csv(table, path)
    return path


def to_parquet(table: pa.Table, path: Path) -> Path:
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    return path


def to_arrow(table: pa.Table, path: Path) -> Path:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    return path


FORMS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "table": lambda table, folder: table,
    "reader": lambda table, folder: table.to_reader(max_chunksize=3),
    "pandas": lambda table, folder: table.to_pandas(),
    "Polars": lambda table, folder: pl.from_arrow(table),
    "CSV": lambda table, folder: to_csv(table, folder / "events.csv"),
    "Parquet": lambda table, folder: to_parquet(table, folder / "events.parquet"),
    "Arrow": lambda table, folder: str(to_arrow(table, folder / "events.arrow")),
    "folder": lambda table, folder: to_arrow(table, folder / "interactions.arrow").parent,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"group": "side"},
    {"group": "side", "advantaged": "b"},
    {"rating_above": 4.0, "item_column": "item"},
    {"group": "nowhere"},
    {"advantaged": "a"},
    {"user_column": "unrelated", "group": "side,unrelated"},
    {"users": pa.table({"user": ["user 1", "user 2", "user 0"], "sex": ["M", "F", "M"]})},
]


@pytest.mark.slow
@given(event_tables(), st.sampled_from(sorted(FORMS)), st.sampled_from(OPTIONS))
def test_what_is_ingested_in_pieces_is_what_is_read_at_once(
    table: pa.Table, form: str, options: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, log_folder = Path(name), Path(name) / "somewhere" / "log"
        expected = content(lambda: read_events(FORMS[form](table, folder), **options))
        source = FORMS[form](table, folder)
        assert content(lambda: ingest(source, log_folder, **options)) == expected
        if isinstance(expected, dict):
            assert content(lambda: read_events(log_folder)) == expected
            assert {entry.name for entry in log_folder.parent.iterdir()} == {"log"}
        else:
            assert not log_folder.parent.exists() or not any(log_folder.parent.iterdir())


@given(event_tables(), st.sampled_from(OPTIONS))
def test_a_saved_log_is_the_log(table: pa.Table, options: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        try:
            log = read_events(table, **options)
        except DataError:
            return
        log.save(Path(name) / "log")
        again = EventLog.open(Path(name) / "log")
        assert everything(again) == everything(log)
        again.users[0], again.times[0] = 9, again.times[-1]  # a private mapping: the file does not change
        assert everything(EventLog.open(Path(name) / "log")) == everything(log)


# What only the end of a CSV file shows: the first line has one kind of value, the last line another.
ONE_FIELD_AND_A_LATER_ONE = [
    *[("7", "7.5"), ("7", "abc"), ("7.5", "7"), ("true", "7"), ("7", ""), ("", "7"), ("x y", '"a,b"')],
    *[("2024-05-01", "2024-05-01 12:00:00"), ("2024-05-01 12:00:00.5", "2024-05-01"), ("2024-05-01", "7")],
    *[("2024-05-01T12:00:00Z", "2024-05-01T12:00:00+02:00"), ("01/05/2024", "13/05/2024")],
]


@pytest.mark.slow
@pytest.mark.parametrize("column", ["item", "time"])
@pytest.mark.parametrize(("first", "later"), ONE_FIELD_AND_A_LATER_ONE)
def test_a_csv_file_has_the_types_that_all_its_lines_agree_on(
    column: str, first: str, later: str, tmp_path: Path
) -> None:
    path = tmp_path / "events.csv"
    lines = [f"{n},{first}" for n in range(20_000)] + [f"1,{later}"]  # more lines than a sample of DuckDB's has
    other = "time" if column == "item" else "item"
    path.write_text(f"user,{column},{other}\n" + "".join(f"{line},1\n" for line in lines))
    read, ingested = content(lambda: read_events(path)), content(lambda: ingest(path, tmp_path / "log"))
    both_refuse = isinstance(read, str) and isinstance(ingested, str)
    assert ingested == read or (both_refuse and ingested.split(",")[0] == read.split(",")[0])


def test_numbers_with_leading_zeros_in_a_csv_file_stay_strings(tmp_path: Path) -> None:
    """The one known difference from `read_events`, which reads 7: DuckDB's rule keeps "007" and "7" apart."""
    (tmp_path / "events.csv").write_text("user,item,time\n007,1,1\n7,1,2\n")
    assert ingest(tmp_path / "events.csv", tmp_path / "log").user_ids.ids.to_pylist() == ["007", "7"]


def test_what_is_wrong_in_any_piece_is_counted_in_all(tmp_path: Path) -> None:
    n = list(range(20))
    holes = [None if at % 4 == 3 else at for at in n]
    for columns in (
        {"user": holes, "item": n, "time": n},
        {"user": n, "item": holes, "time": n},
        {"user": n, "item": n, "time": holes},
        {"user": n, "item": n, "time": n, "rating": [1] * 20},
        {"user": n, "item": n, "time": [*map(float, n[:-1]), float("nan")]},
        {"user": n, "item": n, "time": n, "rating": list("abcdefghijklmnopqrst")},
        {"user": holes, "item": n, "time": n, "rating": [1 if hole is None else 5 for hole in holes], "side": n},
        {"user": [1] * 20, "item": n, "time": n, "side": ["a", "b"] * 10},
        {"user": [], "item": [], "time": []},
        {"user": n, "thing": n, "time": n},
    ):
        table, options = pa.table(columns), {"group": "side"} if "side" in columns else {}
        sentence = content(lambda: read_events(table, **options))  # noqa: B023
        assert isinstance(sentence, str)
        assert content(lambda: ingest(table, tmp_path / "log", **options)) == sentence  # noqa: B023
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_raw_data_sets_can_be_ingested_too(tmp_path: Path) -> None:
    assert everything(ingest("synthetic", tmp_path / "log")) == everything(read_events("synthetic"))


# ── a folder is a whole log or none ──────────────────────────────────────────────────────


@pytest.fixture
def saved(log: EventLog, tmp_path: Path) -> Path:
    log.save(tmp_path / "log")
    return tmp_path / "log"


def refused(reading: Callable[[], Any], *words: str) -> None:
    with pytest.raises(DataError) as caught:
        reading()
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


FILES = ["users", "items", "times", "user_ids", "item_ids", "codes"]


@pytest.mark.parametrize("name", FILES)
def test_a_log_with_a_file_missing_cut_or_exchanged_is_refused(saved: Path, name: str, tmp_path: Path) -> None:
    file = saved / f"{name}.arrow"
    whole = file.read_bytes()
    file.unlink()
    refused(lambda: read_events(saved), str(saved), f"{name}.arrow is missing")
    file.write_bytes(whole[: len(whole) // 2])
    refused(lambda: read_events(saved), str(saved), "damaged")
    file.write_bytes(bytes(len(whole)))
    refused(lambda: read_events(saved), str(saved), "damaged")
    other = "users" if name != "users" else "codes"
    file.write_bytes((saved / f"{other}.arrow").read_bytes())
    refused(lambda: read_events(saved), str(saved), "damaged")
    file.write_bytes(whole)
    read_events(saved)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "files": {}}', "7"])
def test_a_manifest_that_is_none_is_refused(saved: Path, content: str) -> None:
    (saved / "fairstream-log.json").write_text(content)
    refused(lambda: read_events(saved), str(saved), "damaged")


def test_a_log_of_another_format_is_refused(saved: Path) -> None:
    manifest = json.loads((saved / "fairstream-log.json").read_text())
    (saved / "fairstream-log.json").write_text(json.dumps({**manifest, "format": 99}))
    refused(lambda: read_events(saved), "format 99", "the version of fairstream that wrote it")


def test_columns_of_unequal_length_are_refused(saved: Path, log: EventLog, tmp_path: Path) -> None:
    short = replace(log, times=log.times[:-1])
    short.save(tmp_path / "short")
    refused(lambda: read_events(tmp_path / "short"), "damaged")


def test_nothing_is_written_over(saved: Path, log: EventLog, tmp_path: Path) -> None:
    before = sorted((file.name, file.read_bytes()) for file in saved.iterdir())
    (tmp_path / "file").write_text("mine")
    for there in (saved, tmp_path, tmp_path / "file"):
        refused(lambda there=there: log.save(there), str(there), "exists already")
        refused(lambda there=there: ingest("synthetic", there), str(there), "exists already")
    assert sorted((file.name, file.read_bytes()) for file in saved.iterdir()) == before
    assert (tmp_path / "file").read_text() == "mine"
    assert {entry.name for entry in tmp_path.iterdir()} == {"log", "file"}
    (tmp_path / "empty").mkdir()
    log.save(tmp_path / "empty")
    assert everything(read_events(tmp_path / "empty")) == everything(log)


def test_a_disk_that_cannot_be_written_to_is_said_in_one_sentence(log: EventLog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(lambda: log.save(tmp_path / "file" / "log"), "could not be written")
    refused(lambda: ingest("synthetic", tmp_path / "file" / "log"), "could not be written")


@pytest.mark.parametrize("n_read", [0, 3])
@pytest.mark.parametrize("error", [OSError("the line is dead"), ValueError("what is this"), KeyboardInterrupt()])
def test_a_source_that_ends_in_the_middle_leaves_nothing(n_read: int, error: BaseException, tmp_path: Path) -> None:
    schema = pa.schema([("user", pa.int64()), ("item", pa.int64()), ("time", pa.int64())])

    def ending() -> Any:
        for n in range(n_read):
            yield pa.record_batch([[n], [n], [n]], schema=schema)
        raise error

    reader = pa.RecordBatchReader.from_batches(schema, ending())
    refused(lambda: ingest(reader, tmp_path / "log"), "the events cannot be read")
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("memory_limit", ["", "much", "2 apples", None])
def test_a_memory_limit_is_an_amount_of_memory(memory_limit: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\Amemory_limit must be an amount such as '2GB', got [^\n]*\Z"):
        ingest("synthetic", tmp_path / "log", memory_limit=memory_limit)
    assert not any(tmp_path.iterdir())


# ── using it ─────────────────────────────────────────────────────────────────────────────


def test_who_is_advantaged_can_be_said_when_a_log_is_opened(saved: Path, stream: fairstream.SyntheticStream) -> None:
    for advantaged in ("minority", "majority"):
        options: dict[str, Any] = {"group": ["community"], "advantaged": advantaged}
        expected = everything(read_events(stream.events, users=stream.users, **options))
        assert everything(read_events(saved, **options)) == expected
    refused(lambda: read_events(saved, advantaged="nobody"), "no user has community = 'nobody'")
    refused(lambda: read_events(saved, group="age"), "'community'", "give a users table")
    refused(lambda: read_events(saved, item_column="thing"), "columns")
    refused(lambda: read_events(saved, rating_above=4.0), "columns")


def test_a_logs_users_can_be_grouped_anew(saved: Path, log: EventLog, stream: fairstream.SyntheticStream) -> None:
    halves = pa.table({"who": stream.users["user_id"], "half": [n % 2 for n in range(len(stream.users))]})
    users = halves.rename_columns(["user_id", "half"])
    expected = read_events(stream.events, users=users, group="half")
    assert everything(read_events(saved, users=users))["groups"] == everything(expected)["groups"]
    again = read_events(saved, users=halves, user_column="who", group="half")
    assert everything(again)["groups"] == everything(expected)["groups"]
    few = [read_events(saved, users=users.slice(0, n)) for n in (5, 90)]
    assert [len(log.notes) for log in few] == [1, 1]  # on those who are in none of these groups
    few[0].save(saved.parent / "few")
    assert read_events(saved.parent / "few", users=users.slice(0, 90)).notes == few[1].notes


def test_a_recommender_learns_from_a_folder_what_it_learns_from_memory(
    tmp_path: Path, stream: fairstream.SyntheticStream
) -> None:
    first, later = stream.events.slice(0, 3000), stream.events.slice(3000)
    recommended = []
    for where in ("memory", "folder"):
        logs = [read_events(part, users=stream.users) for part in (first, later)]
        if where == "folder":
            for n, part in enumerate(logs):
                part.save(tmp_path / str(n))
            logs = [read_events(tmp_path / "0"), tmp_path / "1"]
        recommender = make_recommender("mf", pretrain_epochs=1, update_epochs=1, embedding_dim=4, device="cpu")
        recommender.fit(logs[0])
        recommender.update(logs[1])
        recommended.append(recommender.recommend(later["user_id"].unique()))
    assert recommended[0] == recommended[1]


def test_a_frame_that_arrow_cannot_read_is_refused(tmp_path: Path) -> None:
    mixed = pd.DataFrame({"user": [1, "a"], "item": [1, 2], "time": [1, 2]})
    assert content(lambda: ingest(mixed, tmp_path / "log")) == content(lambda: read_events(mixed))
    refused(lambda: ingest([("ann", "x", 1)], tmp_path / "log"), "must be a path or a table")
    refused(lambda: ingest(tmp_path / "none.csv", tmp_path / "log"), "no file")


@pytest.mark.slow
def test_more_events_than_the_memory_limit_are_sorted_and_deduplicated_on_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 1_500_000
    columns = {"user": rng.integers(0, 300_000, n), "item": rng.zipf(1.3, n) % 300}
    table = pa.table({**columns, "time": rng.integers(0, 200_000, n)})  # 36 MB
    ingested, read = ingest(table, tmp_path / "log", memory_limit="60MB"), read_events(table)
    assert ingested.fingerprint() == read.fingerprint()
    assert ingested.notes == read.notes
