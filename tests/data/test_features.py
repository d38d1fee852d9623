"""Features of items: what a table says of them, under which hashes, and what it must not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import DataError, EventLog, ingest, read_events
from fairstream.data import Columns, Vocabulary
from fairstream.data.features import MAX_FEATURES, ItemFeatures, _hash

EVENTS = pa.table({"user": ["a", "b", "a"], "item": [5, 5, 9], "sex": ["m", "f", "m"], "time": [1, 2, 3]})


def features(**columns: Any) -> list[list[int]]:
    """The features of each row of a table, as a reader would write them down."""
    n = len(next(iter(columns.values())))
    read = ItemFeatures.read(pa.table({"item": list(range(n)), **columns}), Columns())
    return [[code for code in row if code >= 0] for row in read.codes.tolist()]


def hashes(*pairs: tuple[str, str]) -> list[int]:
    return [_hash(column, value) for column, value in pairs]


def test_each_kind_of_column_gives_its_features() -> None:
    found = features(
        title=["The Big—Sleep, the sequel (1946)", None, " "],
        genres=[["Sci-Fi", None, "Film Noir"], [], None],
        year=pa.array([1946, None, 7]),
        adult=[True, False, None],
        nothing=pa.nulls(3),
    )
    words = [("title", word) for word in ("the", "big", "sleep", "sequel", "1946")]
    first = [*words, ("genres", "sci-fi"), ("genres", "film noir"), ("year", "1946"), ("adult", "true")]
    assert found == [hashes(*first), hashes(("adult", "false")), hashes(("year", "7"))]


def test_a_hash_is_the_same_in_every_process_and_on_every_machine() -> None:
    assert hashes(("genre", "noir"), ("g", "enrenoir")) == [
        0x6B6286F76064C5BC >> 2,
        0x041749D59C803811 >> 2,
    ]  # b2sum -l 64


@given(
    rows=st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=9), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_the_features_of_an_item_depend_on_its_row_alone(rows: list[list[str]], order: Any) -> None:
    expected = [hashes(*(("tags", tag) for tag in dict.fromkeys(tags))) for tags in rows]
    assert features(tags=pa.array(rows, pa.list_(pa.string()))) == expected
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    table = pa.table({"item": shuffled, "tags": pa.array([rows[item] for item in shuffled], pa.list_(pa.string()))})
    codes = ItemFeatures.read(table, Columns()).of(Vocabulary(list(range(len(rows) + 1))))
    assert [[code for code in row if code >= 0] for row in codes.tolist()] == [*expected, []]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string(), 2)])
def test_lists_of_any_kind_are_lists(kind: pa.DataType) -> None:
    assert features(tags=pa.array([["A", "b"], ["c", "A"]], kind)) == [
        hashes(("tags", "a"), ("tags", "b")),
        hashes(("tags", "c"), ("tags", "a")),
    ]


def test_frames_with_categories_are_read() -> None:
    frame = pd.DataFrame({"item_id": [1, 2], "kind": pd.Categorical(["x", "y"])})
    assert ItemFeatures.read(frame, Columns()).codes.tolist() == [hashes(("kind", "x")), hashes(("kind", "y"))]


def test_at_most_so_many_features_count_and_a_note_says_so() -> None:
    table = pa.table({"item": [5, 9], "text": [" ".join(f"w{n}" for n in range(MAX_FEATURES + 1)), "w0"]})
    log = read_events(EVENTS, items=table)
    assert log.features is not None
    assert log.features.codes.shape == (2, MAX_FEATURES)
    assert log.notes == ("1 items have more than 32 features: the first 32 count",)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": ["x"]}, "the items table needs an item column .* but has only name; name it with item_column"),
        ({"item": [1], "price": [1.5]}, r"no column that describes items: 'price' \(double\); features are"),
        ({"item": [1]}, "the items table has no column but 'item'; add columns that describe the items"),
        ({"item": [1, None], "kind": ["x", "y"]}, "every row of the items table needs an item, but 1 of 2 are missing"),
        (
            {"item": [1, 2, 1], "kind": ["x", "y", "z"]},
            "several rows with different values for the item 1; keep one row",
        ),
        ({"item": ["x"], "kind": ["y"]}, "ids must stay of one kind"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_clear_sentence(table: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_events(EVENTS, items=pa.table(table))


def test_columns_of_other_types_are_ignored_with_a_note(tmp_path: Path) -> None:
    kinds = {"item": [1, 2], "kind": ["x", "y"]}
    others = {"price": [1.5, 2.0], "parts": [[1, 2], []], "since": pa.array([0, 1], pa.timestamp("s"))}
    read, plain = (ItemFeatures.read(pa.table(columns), Columns()) for columns in ({**kinds, **others}, kinds))
    assert read.codes.tolist() == plain.codes.tolist()
    (note,) = read.notes
    assert note.startswith("columns of the items that are not used: 'price' (double), 'parts' (list<")
    assert "'since' (timestamp[s])" in note
    (tmp_path / "items.csv").write_text("item,kind,price\n1,x,1.5\n2,y,3\n")
    log = read_events(EVENTS, items=tmp_path / "items.csv")
    assert any("'price' (double)" in note for note in log.notes)


def test_a_row_that_is_there_twice_counts_once() -> None:
    read = ItemFeatures.read(pa.table({"item": [1, 2, 1], "kind": ["x", "y", "X"]}), Columns())
    assert read.codes.tolist() == [hashes(("kind", "x")), hashes(("kind", "y"))]


def test_a_log_knows_its_features_and_says_which_items_have_none(tmp_path: Path) -> None:
    path = tmp_path / "films.parquet"
    pa.parquet.write_table(pa.table({"film": [9, 77], "kind": ["x", "y"]}), path)
    events = EVENTS.rename_columns(["user", "film", "sex", "time"])
    log = read_events(events, items=path, item_column="film", group="sex")
    assert log.n_items == 2  # an item without events is no part of the log
    assert log.notes == ("1 of 2 items have no features: they are known by their events alone",)
    log.save(tmp_path / "log")
    again = EventLog.open(tmp_path / "log")
    assert again.features is not None
    assert again.features.of(again.item_ids).tolist() == [[-1], hashes(("kind", "x"))]
    assert (again.notes, again.fingerprint()) == (log.notes, log.fingerprint())
    anew = read_events(tmp_path / "log", items=pa.table({"film": [5, 9], "kind": [1, 2]}), item_column="film")
    assert anew.notes == ()
    assert anew.fingerprint() != log.fingerprint()


def test_a_log_that_is_ingested_has_the_features_that_are_read(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    items = pa.table({"item": [9, 77], "kind": ["x", "y"]})
    read, ingested = read_events(EVENTS, items=items), ingest(EVENTS, tmp_path / "log", items=items)
    assert (ingested.notes, ingested.fingerprint()) == (read.notes, read.fingerprint())


def test_a_fingerprint_depends_on_the_features_of_the_logs_items_alone() -> None:
    def fingerprint(items: Any) -> str:
        return read_events(EVENTS, items=None if items is None else pa.table(items)).fingerprint()

    some = fingerprint({"item": [5, 9], "kind": ["x", "y"]})
    assert some == fingerprint({"item": [9, 7, 5], "kind": ["y", "a wide one", "x"]})
    assert len({some, fingerprint(None), fingerprint({"item": [5, 9], "kind": ["y", "x"]})}) == 3


def test_later_features_replace_those_before_and_leave_the_others() -> None:
    first = ItemFeatures.read(pa.table({"item": [1, 2], "tags": [["a", "b"], ["c"]]}), Columns())
    second = ItemFeatures.read(pa.table({"item": [3, 1], "tags": [["d"], ["e"]]}), Columns())
    ids = Vocabulary([1, 2])
    before = first.of(ids)
    codes = second.replacing(before, ids.extend(second.ids.ids), len(ids))
    assert codes.tolist() == [
        [*hashes(("tags", "e")), -1],
        [*hashes(("tags", "c")), -1],
        [*hashes(("tags", "d")), -1],
    ]
    assert np.array_equal(before, first.of(Vocabulary([1, 2])))
