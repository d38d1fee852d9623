"""What is said to leak is what a count over all pairs of events finds."""

from __future__ import annotations

import json
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream
from fairstream import DataError, LeakReport, leakcheck

Events = list[tuple[int, int, int]]
EVENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 12)), min_size=1, max_size=25)


def table(events: Events, **more: Any) -> pa.Table:
    users, items, times = zip(*events, strict=True)
    return pa.table({"user_id": users, "item_id": items, "timestamp": times, **more})


def counted(train: Events, test: Events, key: Any) -> dict[str, Any]:
    """The shares by going through all pairs of events with the same key."""
    pairs = [(a[2], b[2]) for a, b in product(train, test) if key(a) == key(b)]
    points = sum((a > b) + 0.5 * (a == b) for a, b in pairs)
    return {
        "train_after_test": np.mean([any(key(a) == key(b) and a[2] > b[2] for b in test) for a in train]),
        "test_before_train": np.mean([any(key(a) == key(b) and a[2] > b[2] for a in train) for b in test]),
        "later_pairs": points / len(pairs) if pairs else None,
    }


@given(EVENTS, EVENTS)
def test_every_number_is_that_of_counting(train: Events, test: Events) -> None:
    found = leakcheck(table(train), table(test)).to_dict()
    for scope, key in (("everyone", lambda _: 0), ("same_user", lambda e: e[0]), ("same_item", lambda e: e[1])):
        assert found[scope] == pytest.approx(counted(train, test, key))
    for column, name in ((0, "users"), (1, "items")):
        tested = {event[column] for event in test}
        first_train = {one: min((e[2] for e in train if e[column] == one), default=None) for one in tested}
        first_test = {one: min(e[2] for e in test if e[column] == one) for one in tested}
        new = [one for one in tested if first_train[one] is None]
        future = [one for one in tested if first_train[one] is not None and first_train[one] > first_test[one]]
        assert (found[f"n_new_{name}"], found[f"n_future_{name}"]) == (len(new), len(future))
        assert found["test"][f"n_{name}"] == len(tested)
    assert found["n_duplicates"] == sum(event in train for event in test)
    assert found["n_repeated_pairs"] == sum(event[:2] in [other[:2] for other in train] for event in test)
    others = {event[0::2] for event in train}
    n_tied = sum(event[0::2] in {*others, *(e[0::2] for e in test[:at])} for at, event in enumerate(test))
    assert found["n_tied"] == (n_tied or None)  # the times are numbers that only order the events
    (begin, *_), (*_, end), last = sorted(e[2] for e in test), sorted(e[2] for e in test), max(e[2] for e in train)
    expected = float(last > begin) if begin == end else np.clip((last - begin) / (end - begin), 0, 1)
    assert found["overlap"] == pytest.approx(expected)
    assert found["leaks"] == (last > begin or found["n_duplicates"] > 0)
    json.dumps(found, allow_nan=False)


@given(EVENTS, EVENTS, st.randoms(use_true_random=False))
def test_order_of_rows_names_of_ids_and_the_clock_change_nothing(train: Events, test: Events, random: Any) -> None:
    def moved(events: Events) -> pa.Table:
        renamed = [(f"u{9 - u}", f"i{7 * i}", 100 + 3 * t) for u, i, t in events]
        return table(random.sample(renamed, len(renamed)))  # type: ignore[arg-type]

    def numbers(report: LeakReport) -> dict[str, Any]:
        found = report.to_dict()
        for part in ("train", "test"):
            del found[part]["first_time"], found[part]["last_time"]
        return found

    before, after = numbers(leakcheck(table(train), table(test))), numbers(leakcheck(moved(train), moved(test)))
    assert after.pop("overlap") == pytest.approx(before.pop("overlap"))
    assert after == before


@given(EVENTS, EVENTS)
def test_of_a_split_and_its_reverse_one_pair_is_later_in_one_of_them(train: Events, test: Events) -> None:
    one, other = leakcheck(table(train), table(test)), leakcheck(table(test), table(train))
    for scope in ("everyone", "same_user", "same_item"):
        there, back = getattr(one, scope).later_pairs, getattr(other, scope).later_pairs
        assert (there is None) == (back is None)
        assert there is None or there + back == pytest.approx(1)


# ── the usual splits ─────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def events() -> pd.DataFrame:
    frame: pd.DataFrame = fairstream.synthetic_stream(n_users=200, n_items=80, n_events=4000, seed=1).events.to_pandas()
    return frame


def split(events: pd.DataFrame, is_test: Any) -> LeakReport:
    return leakcheck(events[~is_test], events[is_test])


def test_a_split_at_random_is_recognised(events: pd.DataFrame) -> None:
    report = split(events, np.random.default_rng(0).random(len(events)) < 0.2)
    assert report.kind == "random"
    assert report.same_user.later_pairs == pytest.approx(0.5, abs=0.05)
    assert report.everyone.later_pairs == pytest.approx(0.5, abs=0.05)
    assert report.n_future_items + report.n_future_users > 0
    assert report.verdict.startswith("Looks like a random split")


def test_the_last_event_of_each_user_leaks_across_users_alone(events: pd.DataFrame) -> None:
    report = split(events, ~events.duplicated("user_id", keep="last"))
    assert report.kind == "across users"
    assert report.same_user.train_after_test == report.same_user.test_before_train == 0
    assert report.everyone.later_pairs is not None
    assert 0 < report.everyone.later_pairs < 0.4
    assert "own order is kept" in report.verdict


def test_a_split_by_time_does_not_leak(events: pd.DataFrame) -> None:
    cut = events["time"].quantile(0.8)
    report = split(events, events["time"] > cut)
    assert (report.kind, report.leaks, report.overlap) == ("none", False, 0)
    assert report.everyone.train_after_test == report.everyone.later_pairs == report.n_future_users == 0


def test_some_own_future_is_neither_clean_nor_random(events: pd.DataFrame) -> None:
    is_test = events["time"] > events["time"].quantile(0.8)
    moved = np.random.default_rng(0).choice(np.flatnonzero(is_test), 40, replace=False)
    is_test[moved] = False
    report = split(events, is_test)
    assert report.kind == "within users"
    assert 0 < report.everyone.train_after_test < 0.05
    assert "later events of the same user" in report.verdict


def test_users_in_one_part_each_can_only_leak_across_users(events: pd.DataFrame) -> None:
    report = split(events, events["user_id"] % 2 == 0)
    assert (report.kind, report.same_user.later_pairs) == ("across users", None)
    assert report.n_new_users == report.test.n_users
    assert "own order" not in report.verdict


def test_a_test_event_in_the_training_events_leaks_although_it_is_not_later() -> None:
    train = [(0, 0, 1), (1, 1, 5)]
    report = leakcheck(table(train), table([(1, 1, 5), (0, 1, 6)]))
    assert (report.kind, report.n_duplicates, report.leaks) == ("none", 1, True)
    assert report.verdict.endswith("; 1 of 2 test events are in the training events too.")


# ── reading ──────────────────────────────────────────────────────────────────────────────


def test_frames_files_and_folders_are_read_alike(events: pd.DataFrame, tmp_path: Path) -> None:
    is_test = np.random.default_rng(1).random(len(events)) < 0.3
    parts = {"train": events[~is_test], "test": events[is_test]}
    expected = leakcheck(*parts.values())
    assert leakcheck(*(pl.from_pandas(part) for part in parts.values())) == expected
    for name, part in parts.items():
        part.to_parquet(tmp_path / f"{name}.parquet")
    assert leakcheck(tmp_path) == leakcheck(str(tmp_path / "train.parquet"), tmp_path / "test.parquet") == expected
    renamed = [part.rename(columns={"user_id": "who", "item_id": "what", "time": "when"}) for part in parts.values()]
    names = {"user_column": "who", "item_column": "what", "time_column": "when"}
    assert leakcheck(*renamed, **names) == expected


def test_ratings_are_not_looked_at() -> None:
    events = [(0, 0, 1), (1, 1, 5)]
    report = leakcheck(table(events, rating=[1.0, None]), table(events, rating=[5, 1]))
    assert (report.train.n_events, report.n_duplicates) == (2, 2)


def test_dates_are_shown_as_dates() -> None:
    days = [date(2024, 2, 28), date(2024, 2, 29)]
    parts = [pa.table({"user": [1], "item": [1], "time": [day]}) for day in days]
    report = leakcheck(*parts)
    assert (report.train.last_time, report.test.first_time) == ("2024-02-28 00:00:00", "2024-02-29 00:00:00")
    assert report.verdict in str(report)
    assert "2024-02-29" in repr(report)


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (table([(1, 1, 1)]), table([(1, 1, 1)]).slice(1), "the test events: .*at least one"),
        (table([(1, 1, 1)]).drop_columns("timestamp"), table([(1, 1, 1)]), "the training events: .*time column"),
        (table([("a", 1, 1)]), table([(1, 1, 1)]), "the test events: ids must stay of one kind"),  # type: ignore[list-item]
        (
            table([(1, 1, 1)]),
            pa.table({"user": [1], "item": [1], "time": [date(2024, 1, 1)]}),
            "the training events have numbers, the test events timestamps",
        ),
        (
            table([(1, 1, 1_700_000_000)]),
            table([(1, 1, 1_700_000_000_000)]),
            "the training events have seconds since 1970, the test events milliseconds since 1970",
        ),
        (
            table([(1, 1, -1), (1, 2, 1_700_000_000), (1, 3, 1_700_000_060)]),
            table([(1, 1, 1_700_000_000_000)]),
            "the training events have seconds since 1970, the test events milliseconds since 1970",
        ),
        (table([(1, 1, 1)]), None, "give the training events and the test events"),
        ("nowhere", None, "must be a folder with the files train and test"),
        (pa.table({"user": [None, 1], "item": [1, 2], "time": [1, 2]}), table([(1, 1, 1)]), "1 of 2 are missing"),
    ],
)
def test_what_cannot_be_compared_is_refused(train: Any, test: Any, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        leakcheck(train, test)


# ── equal times ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("times", "said"), [([5, 5, 6], "1 of 3 (33.3 %)"), ([4, 5, 6], "0 of 3 (0.0 %)")])
def test_test_events_at_the_time_of_the_users_previous_one_are_counted(times: list[int], said: str) -> None:
    train = table([(1, 1, 10**9), (2, 2, 10**9)])
    report = leakcheck(train, table([(1, item, 10**9 + time) for item, time in enumerate(times, start=3)]))
    assert said in next(line for line in str(report).splitlines() if "time of the user's previous one" in line)
    assert ("the task moment counts them as one request" in str(report)) == (report.n_tied == 1)


def test_numbers_that_only_order_the_events_have_no_equal_times() -> None:
    report = leakcheck(table([(1, 1, 1), (2, 2, 2)]), table([(1, 3, 3), (2, 3, 3)]))
    assert report.n_tied is None
    assert "previous one" not in str(report)
