"""Ids in text files keep every letter, in whatever way they are read and beside whatever table."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream as fs
from support import make_recommender

SPELLINGS = {
    "a leading zero": ["007", "7", "12"],
    "leading zeros everywhere": ["0001", "0002", "0010"],
    "a quoted zero": ['"007"', "7", "12"],
    "zeros alone": ["0", "00", "12"],
    "a plus sign": ["+7", "7", "12"],
    "letters": ["a", "7", "12"],
    "a space and a zero": ["7", " 007", "12"],
}
N = 150_000


def written(path: Path, users: list[str], items: list[str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(users, items or ["1"] * len(users), range(len(users)), strict=True)
    content = "user_id,item_id,time\n" + "".join(f"{user},{item},{time}\n" for user, item, time in rows)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def read_both(source: Path, folder: Path, **options: Any) -> fs.EventLog:
    """The log, which both readers agree on."""
    log, ingested = fs.read_events(source, **options), fs.ingest(source, folder / "log", **options)
    assert log.fingerprint() == ingested.fingerprint()
    assert log.user_ids.ids == ingested.user_ids.ids
    return log


@pytest.mark.few
@pytest.mark.parametrize("ids", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_every_spelling_is_an_id(ids: list[str], suffix: str, tmp_path: Path) -> None:
    spelled = [name.strip('"') for name in ids]
    log = read_both(written(tmp_path / f"events{suffix}", ids, ids[::-1]), tmp_path)
    assert log.user_ids.ids.to_pylist() == spelled
    assert log.item_ids.ids.to_pylist() == spelled[::-1]


@pytest.mark.parametrize("ids", [["7", "0", "12"], ["-7", "7", "12"], ["7.0", "0.0", "12.0"]])
def test_plain_numbers_are_integers(ids: list[str], tmp_path: Path) -> None:
    log = read_both(written(tmp_path / "events.csv", ids), tmp_path)
    assert log.user_ids.ids.to_pylist() == [int(float(name)) for name in ids]


@given(st.lists(st.from_regex(r"\A[+]?\d{1,4}\Z"), min_size=1, max_size=8))
def test_the_ids_are_numbers_or_what_is_written(tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
    folder = tmp_path_factory.mktemp("ids")
    log = read_both(written(folder / "events.csv", ids), folder)
    spelled = list(dict.fromkeys(ids))
    are_plain = all(name == str(int(name)) for name in ids)
    assert log.user_ids.ids.to_pylist() == ([int(name) for name in spelled] if are_plain else spelled)


@pytest.mark.slow
def test_one_padded_id_is_found_wherever_it_stands(tmp_path: Path) -> None:
    """Blocks of the file begin anywhere, in the middle of an id too."""
    for place in (0, N - 1, int(np.random.default_rng(0).integers(N))):
        ids = [str(1_000_000 + n) for n in range(N)]
        ids[place] = "0" + ids[place]
        assert fs.read_events(written(tmp_path / "events.csv", ids)).user_ids.ids.to_pylist() == ids


def test_other_columns_with_zeros_leave_ids_integers(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("user_id,item_id,time,rating\n7,1,0010,05\n12,2,0007,04\n")
    log = read_both(path, tmp_path)
    assert log.user_ids.ids.to_pylist() == [12, 7]
    assert log.times.tolist() == [7, 10]


@pytest.mark.parametrize("order", [1, -1])
def test_files_of_one_folder_are_read_alike(order: int, tmp_path: Path) -> None:
    for number, ids in enumerate([["7", "12"], ["007", "12"]][::order]):
        written(tmp_path / "parts" / f"part-{number}.csv", ids)
    log = read_both(tmp_path / "parts", tmp_path)
    assert sorted(log.user_ids.ids.to_pylist()) == ["007", "12", "7"]


@pytest.mark.parametrize(
    ("events", "described"),
    [(["007", "12"], ["12", "13"]), (["12", "13"], ["007", "12"]), (["007", "12"], ["007", "13"])],
)
def test_tables_beside_the_events_still_match(events: list[str], described: list[str], tmp_path: Path) -> None:
    source = written(tmp_path / "events.csv", events, events)
    users, items = tmp_path / "users.csv", tmp_path / "items.csv"
    users.write_text("user_id,gender\n" + "".join(f"{name},{'MF'[n % 2]}\n" for n, name in enumerate(described)))
    items.write_text("item_id,kind\n" + "".join(f"{name},{'ab'[n % 2]}\n" for n, name in enumerate(described)))
    log = read_both(source, tmp_path, users=users, items=items, group="gender")
    assert log.groups is not None
    assert log.features is not None
    assert (log.groups.codes >= 0).tolist() == [name in described for name in events]
    assert (log.features.of(log.item_ids) >= 0).any(axis=1).tolist() == [name in described for name in events]


def test_words_do_not_match_numbers(tmp_path: Path) -> None:
    users = pa.table({"user_id": ["u7", "u12"], "gender": ["F", "M"]})
    with pytest.raises(fs.DataError, match="user ids must be of one kind in both tables"):
        fs.read_events(written(tmp_path / "events.csv", ["7", "12"]), users=users, group="gender")


def test_later_files_are_read_as_the_first_was(tmp_path: Path) -> None:
    rec = make_recommender("item-item").fit(written(tmp_path / "first.csv", ["007", "12", "007"], ["01", "02", "3"]))
    rec.save(tmp_path / "model")
    for one in (rec, fs.load(tmp_path / "model")):
        one.update(written(tmp_path / "later.csv", ["12", "13"], ["10", "11"]))
        assert one.state.user_ids.ids.to_pylist() == ["007", "12", "13"]
        assert one.state.item_ids.ids.to_pylist() == ["01", "02", "3", "10", "11"]
    assert rec.retain(tmp_path / "later.csv") == 3
    frame = pa.table({"user_id": [12], "item_id": [1], "time": [9]})
    with pytest.raises(fs.DataError, match="ids must stay of one kind"):  # a frame says that they are numbers
        rec.update(frame)


def test_quoted_line_breaks_are_part_of_a_field_in_a_file_of_any_size(tmp_path: Path) -> None:
    n, path = 60_000, tmp_path / "events.csv"
    path.write_text("user_id,item_id,time,title\n" + "".join(f'{n},{n % 9},{n},"a {n}\nb, {n}"\n' for n in range(n)))
    table = fs.data.reading.to_table(path, what="the events")
    assert table["title"].to_pylist() == [f"a {n}\nb, {n}" for n in range(n)]
    assert len(fs.read_events(path)) == n
