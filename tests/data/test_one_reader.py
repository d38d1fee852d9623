"""`read_events`, `ingest` and the service read the same events from every file; other columns break nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import fairstream as fs
from fairstream.data import Columns
from fairstream.data.reading import combined, to_table
from fairstream.service.incoming import batches_from_file
from fairstream.service.settings import Limits
from raw_layouts import write_1m

ROWS = "user_id,item_id,timestamp\n"
TABLE = pa.table({"user_id": ["x", "y", "x"], "item_id": [1, 2, 3], "timestamp": [1_500_000_000.5, 2e9, 1e9]})


def write(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def file(folder: Path) -> Path:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder / name

    return file


def movielens(folder: Path) -> Path:
    (folder / "ml-1m").mkdir()
    return write_1m(folder / "ml-1m")


def write_parts(folder: Path) -> Path:
    write("parts/0.csv", ROWS + "7,1,1\n12,1,2\n")(folder)
    write("parts/1.csv", ROWS + "007,1,3\n12,2,1.5\n")(folder)
    return folder / "parts"


def write_unlike_parts(folder: Path) -> Path:
    write("parts/0.csv", ROWS[:-1] + ",rating\n7,1,1,5\n12,1,2,4\n")(folder)
    write("parts/1.csv", ROWS + "7,2,3\n")(folder)
    return folder / "parts"


def write_unlike_blocks(folder: Path) -> Path:
    """JSON Lines of more than one block, with an unused field that changes its type."""
    events = ({"user": n, "item": n % 7, "time": n, "p": 1 if n < 90_000 else {"a": 1}} for n in range(100_000))
    return write("e.jsonl", "\n".join(map(json.dumps, events)))(folder)


FILES: dict[str, Callable[[Path], Any]] = {
    "CSV": write("e.csv", ROWS + "7,1,1\n12,1,2\n7,2,3\n"),
    "usual names": write("e.csv", "customer_id,product_id,event_time\n7,1,1\n"),
    "out of order": write("e.csv", ROWS + "7,1,3\n12,1,2\n7,2,1\n"),
    "TSV": write("e.tsv", ROWS.replace(",", "\t") + "a\t1\t1\n"),
    "semicolons": write("e.csv", "user_id;item_id;timestamp\na;1;1,5\nb;2;2,5\n"),
    "leading zeros": write("e.csv", ROWS + "007,1,1\n7,01,2\n"),
    "plus signs": write("e.csv", ROWS + "+7,1,1\n7,2,2\n"),
    "long digits": write("e.csv", ROWS + f"{2**70},1,1\n{2**62},2,2\n"),
    "whole floats": write("e.csv", ROWS + "7.0,1,1\n12.0,2,2\n"),
    "quoted line breaks": write("e.csv", ROWS[:-1] + ',title\n"a ""b""",1,1,"one\ntwo, three"\nc,2,2,\n'),
    "byte order mark": write("e.csv", b"\xef\xbb\xbf" + ROWS.encode() + b"a,1,1\n"),
    "gzip": write("e.csv.gz", gzip.compress((ROWS + "007,1,1\n").encode())),
    "two gzip members": write("e.csv.gz", gzip.compress(ROWS.encode()) + gzip.compress(b"7,1,1\n")),
    "zstd": write("e.csv.zst", pa.compress((ROWS + "7,1,1\n").encode(), "zstd", asbytes=True)),
    "ISO 8601": write("e.csv", ROWS + "a,1,2024-05-01T12:00:00\nb,2,2024-05-01 13:00:00.5\n"),
    "time zones": write("e.csv", ROWS + "a,1,2024-05-01T12:00:00Z\nb,2,2024-05-01T12:00:00+02:00\n"),
    "ratings": write("e.csv", ROWS[:-1] + ",rating\n7,1,1,5\n12,1,2,1\n7,2,3,2.5\n,2,3,\n"),
    "mixed other column": write("e.csv", ROWS[:-1] + ",price\n7,1,1,5\n12,1,2,free\n"),
    "JSON Lines": write("e.jsonl", '{"user": 1, "item": "a", "time": 3}\n\n{"user": 2, "item": "b", "time": 4.5}\n'),
    "JSON list": write("e.json", json.dumps([{"user": "01", "item": 2, "time": "2024-05-01"}])),
    "JSON, mixed other field": write(
        "e.jsonl", '{"user": 1, "item": 1, "time": 3, "p": 1}\n{"user": 2, "item": 1, "time": 3, "p": "x", "q": []}'
    ),
    "Parquet": lambda folder: pyarrow.parquet.write_table(TABLE, folder / "e.parquet") or folder / "e.parquet",
    "Feather": lambda folder: pyarrow.feather.write_feather(TABLE, folder / "e.feather") or folder / "e.feather",
    "folder of parts": write_parts,
    "parts with other columns": write_unlike_parts,
    "JSON, another field of two types": write_unlike_blocks,
    "long header": write(
        "e.csv", ",".join([ROWS[:-1], *(f"column {n}" for n in range(9_999))]) + "\n7,1,1" + "," * 9_999
    ),
    "glob": lambda folder: str(write_parts(folder) / "*.csv"),
    "address": lambda folder: f"file://{write('e.csv.gz', gzip.compress((ROWS + '7,1,1').encode()))(folder)}",
    "MovieLens with ::": movielens,
}


def events_of(log: fs.EventLog) -> list[tuple[str, str, int]]:
    """The events with ids as text and times in microseconds since 1970."""
    table = log.to_arrow()
    times = log.times.view(np.int64) if log.times.dtype.kind == "M" else np.rint(log.times * 1e6).astype(np.int64)
    ids = (map(str, table[name].to_pylist()) for name in ("user_id", "item_id"))
    return list(zip(*ids, times.tolist(), strict=True))


@pytest.mark.few(12)
@pytest.mark.parametrize("name", FILES)
def test_all_readers_give_the_same_events(name: str, tmp_path: Path) -> None:
    source = FILES[name](tmp_path)
    log = fs.read_events(source, repeats="all")
    ingested = fs.ingest(source, tmp_path / "log", repeats="all")
    assert ingested.fingerprint() == log.fingerprint()
    assert ingested.to_arrow().equals(log.to_arrow())
    assert (ingested.columns, ingested.notes) == (log.columns, log.notes)
    batches = list(batches_from_file(source, Columns(), Limits(max_future_seconds=10**9)))
    stored = pa.concat_tables(batches).sort_by("time")
    columns = (stored[column].to_pylist() for column in ("user_id", "item_id", "time"))
    assert sorted(zip(*columns, strict=True)) == sorted(events_of(log))


MIXED = {"user": [1, 2], "item": [3, 4], "time": [5, 6], "price": ["104.3", 1.5]}


@pytest.mark.parametrize("form", [pd.DataFrame, dict, lambda columns: pd.DataFrame(columns).to_dict("records")])
def test_a_mixed_column_that_is_not_used_breaks_nothing(form: Callable[[Any], Any], tmp_path: Path) -> None:
    expected = fs.read_events({name: MIXED[name] for name in ("user", "item", "time")}).fingerprint()
    assert fs.read_events(form(MIXED)).fingerprint() == expected
    assert fs.ingest(form(MIXED), tmp_path / "log").fingerprint() == expected
    users = form({"user": [1, 2], "plan": ["a", "b"], "age": ["old", 3]})
    assert fs.read_events(form(MIXED), users=users, group="plan").groups is not None
    with pytest.raises(fs.DataError, match="the values of 'item' have no common type"):
        fs.read_events(form({**MIXED, "item": ["a", 1]}))


@pytest.mark.parametrize("content", ["[1, 2]", "[[1], [2]]", "3\n4\n", '"a"', "[null]"])
def test_json_without_objects_is_one_sentence(content: str, tmp_path: Path) -> None:
    with pytest.raises(fs.DataError, match=r"the events: JSON must hold objects, one for each row, got \w+\Z"):
        fs.read_events(write("e.json", content)(tmp_path))


def test_a_folder_wins_over_a_data_set_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("synthetic/interactions.csv", ROWS + "7,1,1\n12,1,2\n")(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("synthetic", "./synthetic", tmp_path / "synthetic"):
        assert fs.read_events(name).user_ids.ids.to_pylist() == [7, 12]


def test_a_log_whose_items_have_no_features_can_be_opened(tmp_path: Path) -> None:
    log = fs.read_events({"user": [1], "item": [2], "time": [3]}, items=pa.table({"item": [2], "kind": [None]}))
    log.save(tmp_path / "log")
    assert fs.read_events(tmp_path / "log").fingerprint() == log.fingerprint()


def test_a_column_of_text_can_exceed_2_gb() -> None:
    # Arrow's strings have 32-bit offsets, its large strings have 64 bits.
    assert combined(pa.chunked_array([["a"], ["b"]])).type == pa.large_string()


def test_a_part_without_a_column_has_no_values_in_it(tmp_path: Path) -> None:
    first = pa.table({"user_id": [1, 2], "item_id": [5, 5], "timestamp": [1, 2], "group": ["F", "M"]})
    second = pa.table({"user_id": [3, 4], "item_id": [5, 5], "timestamp": [3, 4]})
    log = fs.read_events([first, second], group="group")
    ingested = fs.ingest([first, second], tmp_path / "log", group="group")
    assert log.groups is not None
    assert log.groups.codes.tolist() == [0, 1, -1, -1]
    assert ingested.fingerprint() == log.fingerprint()
    parts = [first, second.drop_columns(["user_id"])]
    for read in (lambda: fs.read_events(parts), lambda: fs.ingest(parts, tmp_path / "other")):
        with pytest.raises(fs.DataError, match="every event needs a user, but 2 of 4 are missing in 'user_id'"):
            read()


def test_times_with_and_without_a_zone_do_not_mix(tmp_path: Path) -> None:
    write("parts/0.csv", ROWS + "a,1,2024-05-01T12:00:00\n")(tmp_path)
    write("parts/1.csv", ROWS + "b,1,2024-05-01T12:00:00Z\n")(tmp_path)
    for read in (lambda: fs.read_events(tmp_path / "parts"), lambda: fs.ingest(tmp_path / "parts", tmp_path / "log")):
        with pytest.raises(fs.DataError, match="time zone"):
            read()


def test_types_depend_on_all_rows_of_a_file_that_is_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairstream.data.reading._BLOCK_BYTES", 100)
    lines = [f"{n},{n % 7},{n}" for n in range(200)]
    for late in ("007,1,1", "7.5,1,1", "x,1,1", "7,1,1.5", ",1,1"):
        source = write("e.csv", ROWS + "\n".join([*lines, late]))(tmp_path)
        whole = to_table(source, what="the events")
        blocks = pa.concat_tables(fs.data.reading.open_source(source, "the events").tables())
        assert blocks.combine_chunks().equals(whole.combine_chunks())
