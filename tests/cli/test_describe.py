"""What is said of a folder or file is what is in it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream
from fairstream import DataError
from fairstream.cli.data import Description, GroupColumn, Size, describe
from fairstream.data.datasets.prepare import get_dataset
from fairstream.data.datasets.sources import PUBLISHED
from raw_layouts import original, write_1m, write_100k, write_modcloth

PEOPLE = {
    "gender": ["M", "F", "F", None],
    "name": ["Ann", "Bo", "Cy", "Di"],
    "country": ["NL"] * 4,
    "tastes": [["a"], ["b"], [], []],
}
EVENT = st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 5), st.integers(0, 99))


def write(folder: Path, events: Any, users: Any = None) -> Path:
    folder.mkdir(exist_ok=True)
    pa.parquet.write_table(pa.table(events), folder / "interactions.parquet")
    if users is not None:
        pa.parquet.write_table(pa.table(users), folder / "users.parquet")
    return folder


def column(found: Description, name: str) -> GroupColumn:
    return next(column for column in found.group_columns if column.name == name)


@given(events=st.lists(EVENT, min_size=1, max_size=40).filter(lambda events: any(r > 2 for _, _, r, _ in events)))
def test_the_counts_are_those_of_counting(tmp_path_factory: pytest.TempPathFactory, events: list[Any]) -> None:
    users, items, ratings, times = zip(*events, strict=True)
    folder = write(
        tmp_path_factory.mktemp("any"),
        {"user": users, "item": items, "rating": ratings, "time": times},
        {"user": range(4), **PEOPLE},
    )
    found = describe(folder)
    kept = [(u, i, t) for u, i, r, t in events if r > 2]
    pairs = {(u, i) for u, i, _ in kept}
    assert (found.n_events, found.n_users, found.n_items) == (
        len(pairs),
        len({u for u, _ in pairs}),
        len({i for _, i in pairs}),
    )
    assert found.n_repeated == len(kept) - len(pairs)
    first = {pair: min(t for u, i, t in kept if (u, i) == pair) for pair in pairs}
    n_tied = len(pairs) - len({(u, t) for (u, _), t in first.items()})
    assert found.n_tied == (n_tied or None)  # the times are numbers that only order the events
    assert (found.first_time, found.last_time) == (str(min(first.values())), str(max(first.values())))
    assert found.ratings is not None
    assert (found.ratings.lowest, found.ratings.highest) == (min(ratings), max(ratings))
    assert found.ratings.mean == pytest.approx(sum(ratings) / len(ratings))
    assert (found.ratings.n_rated, found.ratings.n_above) == (len(events), len(kept))
    gender_of = dict(enumerate(PEOPLE["gender"]))
    n_events = Counter(gender_of.get(u) for u, _ in pairs)
    n_users = Counter(gender_of.get(u) for u in {u for u, _ in pairs})
    gender = column(found, "gender")
    assert {name: (size.n_users, size.n_events) for name, size in gender.values.items() if size.n_users} == {
        name: (n_users[name], n_events[name]) for name in n_users if name is not None
    }
    assert gender.unknown == Size(n_users[None], n_events[None])
    sizes = [size.n_users for size in gender.values.values()]
    assert sizes == sorted(sizes, reverse=True)
    json.dumps(asdict(found), allow_nan=False)


def test_what_makes_no_groups_is_named_with_the_reason(tmp_path: Path) -> None:
    events = {"user": [*range(150)], "item": [1] * 150, "time": [*range(150)]}
    users = {"user": [*range(150)], "name": [f"n{n}" for n in range(150)], "one": ["x"] * 150, "none": pa.nulls(150)}
    found = describe(write(tmp_path, events, users | {"twice": ["a", "b"] * 75}))
    assert {column.name: column.problem for column in found.group_columns} == {
        "name": "150 values",
        "one": "1 value",
        "none": "0 values",
        "twice": None,
    }


def test_events_that_tell_of_their_users_are_asked_too(tmp_path: Path) -> None:
    events = {"user": [1, 1, 2], "item": [1, 2, 1], "time": [1, 2, 3], "sex": ["F", "F", "M"], "mood": ["a", "b", "a"]}
    found = describe(write(tmp_path, events))
    assert column(found, "sex").values == {"F": Size(1, 2), "M": Size(1, 1)}
    assert column(found, "mood").problem == "2 values, some users have several of them"


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_a_single_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"events.{kind}"
    table = pa.table({"user": ["a", "b"], "item": [1, 1], "time": [1.5, 2.5]})
    if kind == "csv":
        pa.csv.write_csv(table, path)
    elif kind == "parquet":
        pa.parquet.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    found = describe(path)
    assert (found.n_events, found.n_users, found.n_items) == (2, 2, 1)
    assert (found.first_time, found.last_time) == ("1.5", "2.5")
    assert (found.ratings, found.group_columns) == (None, ())


@pytest.mark.parametrize(
    ("times", "first"),
    [
        ([978_300_760, 978_300_761], "2000-12-31 22:12:40"),
        ([978_300_760_000, 978_300_761_000], "2000-12-31 22:12:40"),
        ([978_300_760.5, 978_300_761.5], "2000-12-31 22:12:40"),
        (pa.array([978_300_760_000_000] * 2, pa.timestamp("us", "UTC")), "2000-12-31 22:12:40"),
        (pa.array([11_322] * 2, pa.date32()), "2000-12-31 00:00:00"),
        ([0, 1], "0"),
        ([-5, 978_300_760], "-5"),
        ([9_000_000_000_000_000_000] * 2, "9,000,000,000,000,000,000"),
    ],
    ids=["seconds", "milliseconds", "fractions", "timestamps", "dates", "order", "before 1970", "beyond time"],
)
def test_times_are_dates_where_they_are(times: Any, first: str, tmp_path: Path) -> None:
    assert describe(write(tmp_path, {"user": [1, 2], "item": [1, 2], "time": times})).first_time == first


def test_ratings_that_are_no_numbers_do_not_spoil_the_mean(tmp_path: Path) -> None:
    ratings = [3.0, float("nan"), 5.0, None, float("inf")]
    found = describe(write(tmp_path, {"user": [*range(5)], "item": [1] * 5, "time": [1] * 5, "rating": ratings}))
    assert found.ratings is not None
    assert (found.ratings.n_rated, found.ratings.mean, found.ratings.highest) == (2, 4.0, 5.0)
    assert found.n_events == found.ratings.n_above == 3
    json.dumps(asdict(found), allow_nan=False)


@pytest.mark.parametrize("name", ["movielens-1m", "movielens-100k", "modcloth"])
def test_the_raw_and_the_prepared_data_hold_the_same(name: str, tmp_path: Path) -> None:
    raw, archive = tmp_path / "raw", tmp_path / "archive"
    raw.mkdir()
    source = {"movielens-1m": write_1m, "movielens-100k": write_100k, "modcloth": write_modcloth}[name](raw)
    archive.write_bytes(original(name))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    prepared = describe(get_dataset(name, to=tmp_path, archive=archive, sha256=sha256).folder)
    from_raw = describe(source)
    left_out = {"ratings", "notes", "n_repeated"}
    told = [{key: part for key, part in asdict(found).items() if key not in left_out} for found in (prepared, from_raw)]
    assert told[0] == told[1]
    assert prepared.ratings is None
    assert from_raw.ratings is not None
    assert from_raw.notes


def test_a_stored_log_tells_of_its_own_groups(log: fairstream.EventLog, tmp_path: Path) -> None:
    log.save(tmp_path / "log")
    found = describe(tmp_path / "log")
    assert (found.n_events, found.n_users, found.n_items) == (len(log), log.n_users, log.n_items)
    assert [column.name for column in found.group_columns] == ["community"]
    assert sum(size.n_events for size in found.group_columns[0].values.values()) == len(log)
    assert found.n_repeated is None


@pytest.mark.slow
def test_nearly_the_papers_data_is_told_apart_by_its_counts(tmp_path: Path) -> None:
    """As many users and items as ModCloth, and all but 100 of its events."""
    known = next(known for known in PUBLISHED if known.name == "modcloth")
    n_events, n_users, n_items = known.counts
    pairs = [(n % n_users, n % n_items) for n in range(n_events)]
    users, items = zip(*pairs, strict=True)
    assert len(set(pairs)) == n_events
    events = pa.table({"user": users, "item": items, "time": range(n_events)})
    found = describe(write(tmp_path, events.slice(0, n_events - 100)))
    assert found.paper_dataset is None
    assert found.difference is not None
    assert "the paper's modcloth has 83,147 events" in found.difference
    assert "this has 83,047 events, 37,142 users and 1,014 items" in found.difference
    found = describe(write(tmp_path, events))
    assert (found.paper_dataset, found.difference) == ("modcloth", None)


@pytest.mark.parametrize("known", PUBLISHED, ids=lambda known: known.name)
def test_the_papers_data_is_found_to_be_so(known: Any, paper_data: Path) -> None:
    found = describe(paper_data / known.name)
    assert (found.paper_dataset, found.difference, found.n_repeated) == (known.name, None, 0)
    assert (found.n_events, found.n_users, found.n_items) == known.counts


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "interactions.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "nothing").mkdir()
    no_events = write(tmp_path / "no events", {"user": pa.array([], pa.int64()), "item": [], "time": []})
    other_ids = write(
        tmp_path / "other ids", {"user": [1], "item": [1], "time": [1]}, {"user": ["a", "b"], "sex": ["F", "M"]}
    )
    for source, named in {
        tmp_path / "missing": "there is no file or folder",
        tmp_path / "nothing": "must hold interactions.parquet",
        tmp_path / "garbage": "interactions.parquet cannot be read",
        no_events: "no events",
        other_ids: "user ids must be of one kind",
    }.items():
        with pytest.raises(DataError, match=rf"\A[^\n]*{named}[^\n]*\Z"):
            describe(source)
