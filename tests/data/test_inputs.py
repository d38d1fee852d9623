"""The inputs that people have: each gives the log that an Arrow table of the same rows gives."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet
import pytest

import fairstream as fs
from fairstream.data.reading import to_table

N = 60
EVENTS = pa.table(
    {
        "user_id": [n % 7 for n in range(N)],
        "item_id": [f"i{n * n % 11}" for n in range(N)],
        "timestamp": pa.array(np.datetime64("2024-05-01T12:00:00") + np.arange(N) * np.timedelta64(3600, "s")),
        "rating": [1.5 + n % 4 for n in range(N)],
    }
)
USERS = pa.table({"user_id": list(range(7)), "plan": ["free", "paid", "free", "paid", "free", "paid", None]})


def text(separator: str = ",", decimal: str = ".") -> bytes:
    """The events as people write CSV files."""
    rows = [EVENTS.column_names, *(map(str, row.values()) for row in EVENTS.to_pylist())]
    lines = [separator.join(row) for row in rows]
    if decimal == ",":
        lines = [line.rpartition(".")[0] + "," + line.rpartition(".")[2] if "." in line else line for line in lines]
    return ("\n".join(lines) + "\n").encode()


def lines() -> bytes:
    return b"".join(json.dumps(row, default=str).encode() + b"\n" for row in EVENTS.to_pylist())


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("folder/events.csv", content)
    return file.getvalue()


def zstd(content: bytes) -> bytes:
    return pa.compress(content, "zstd", asbytes=True)


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def parts(folder: Path) -> Path:
    """A folder as Spark writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(EVENTS.slice(0, 25), folder / "part-0.parquet")
    pyarrow.parquet.write_table(EVENTS.slice(25), folder / "part-1.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").touch()
    return folder


def rows() -> list[dict[str, Any]]:
    return EVENTS.to_pylist()


def feather(path: Path) -> Path:
    pyarrow.feather.write_feather(EVENTS, path)
    return path


def in_memory_file_system(table: pa.Table) -> str:
    import fsspec

    with fsspec.open("memory://bucket/day=1/events.parquet", "wb") as file:
        pyarrow.parquet.write_table(table, file)
    return "memory://bucket/day=1/events.parquet"


FORMS: dict[str, Callable[[Path], Any]] = {
    "Polars LazyFrame": lambda folder: pl.from_arrow(EVENTS).lazy(),
    "columns by name": lambda folder: EVENTS.to_pydict(),
    "list of dictionaries": lambda folder: rows(),
    "generator of dictionaries": lambda folder: (row for row in rows()),
    "list of frames": lambda folder: [EVENTS.slice(0, 20).to_pandas(), EVENTS.slice(20).to_pandas()],
    "generator of frames": lambda folder: (pl.from_arrow(EVENTS.slice(at, 20)) for at in (0, 20, 40)),
    "list of lazy frames": lambda folder: [pl.from_arrow(EVENTS.slice(at, 30)).lazy() for at in (0, 30)],
    "ISO strings": lambda folder: EVENTS.to_pandas().assign(timestamp=lambda f: f.timestamp.astype(str)),
    "ISO strings in UTC": lambda folder: EVENTS.to_pandas().assign(
        timestamp=lambda f: f.timestamp.dt.strftime("%Y-%m-%dT%H:%M:%S.123456789Z")
    ),
    "whole floats as ids": lambda folder: EVENTS.to_pandas().astype({"user_id": float}),
    "CSV": lambda folder: written(folder / "e.csv", text()),
    "CSV, semicolons": lambda folder: written(folder / "e.csv", text(";")),
    "CSV, semicolons, decimal commas": lambda folder: written(folder / "e.csv", text(";", ",")),
    "CSV, bars": lambda folder: written(folder / "e.txt", text("|")),
    "CSV with a byte order mark": lambda folder: written(folder / "e.csv", b"\xef\xbb\xbf" + text()),
    "TSV": lambda folder: written(folder / "e.tsv", text("\t")),
    "CSV, gzip": lambda folder: written(folder / "e.csv.gz", gzip.compress(text())),
    "CSV, zip": lambda folder: written(folder / "e.csv.zip", zipped(text())),
    "CSV, bzip2": lambda folder: written(folder / "e.csv.bz2", bz2.compress(text())),
    "CSV, zstd": lambda folder: written(folder / "e.csv.zst", zstd(text())),
    "TSV, gzip": lambda folder: written(folder / "E.TSV.GZ", gzip.compress(text("\t"))),
    "JSON Lines": lambda folder: written(folder / "e.jsonl", lines()),
    "JSON Lines, gzip": lambda folder: written(folder / "e.ndjson.gz", gzip.compress(lines())),
    "JSON list": lambda folder: written(folder / "e.json", json.dumps(rows(), default=str).encode()),
    "Feather": lambda folder: feather(folder / "e.feather"),
    "folder of Parquet parts": lambda folder: parts(folder / "events"),
    "folder as a string": lambda folder: str(parts(folder / "events")),
    "glob": lambda folder: str(parts(folder / "events") / "part-*.parquet"),
    "glob of folders": lambda folder: str(parts(folder / "events" / "2024").parent / "*"),
    "list of paths": lambda folder: sorted(parts(folder / "events").glob("*.parquet")),
    "address": lambda folder: in_memory_file_system(EVENTS),
    "address of a folder": lambda folder: in_memory_file_system(EVENTS).rpartition("/")[0],
    "address with a star": lambda folder: in_memory_file_system(EVENTS).replace("events", "ev*"),
    "file address": lambda folder: f"file://{written(folder / 'e.csv.gz', gzip.compress(text()))}",
}


@pytest.mark.few(12)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_log_of_the_same_rows(form: str, tmp_path: Path) -> None:
    """The matrix; docs/lab-log.md has what each of them gave before."""
    expected = fs.read_events(EVENTS, users=USERS)
    log = fs.read_events(FORMS[form](tmp_path), users=USERS)
    assert log.user_ids.ids.equals(expected.user_ids.ids)
    assert log.item_ids.ids.to_pylist() == expected.item_ids.ids.to_pylist()
    assert np.array_equal(log.users, expected.users)
    assert np.array_equal(log.items, expected.items)
    assert np.array_equal(log.times.astype("datetime64[s]"), expected.times.astype("datetime64[s]"))
    assert log.notes == expected.notes


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "form",
    [
        "generator of frames",
        "CSV, semicolons, decimal commas",
        "CSV, gzip",
        "CSV, zip",
        "JSON Lines",
        "glob",
    ],
)
def test_what_is_ingested_is_what_is_read(form: str, tmp_path: Path) -> None:
    log = fs.ingest(FORMS[form](tmp_path), tmp_path / "log", users=USERS)
    assert log.fingerprint() == fs.read_events(EVENTS, users=USERS).fingerprint()


def test_the_command_line_reads_the_same(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fairstream.cli import app

    found = []
    for form in ("CSV", "CSV, semicolons", "glob", "JSON Lines", "address"):
        (tmp_path / form).mkdir()
        described = tmp_path / form / "found.json"
        source = str(FORMS[form](tmp_path / form))
        assert CliRunner().invoke(app, ["data", "check", source, "--json", str(described), "--quiet"]).exit_code == 0
        found.append(json.loads(described.read_text()))
    assert all(one == found[0] for one in found)


def test_folders_named_after_values_give_columns(tmp_path: Path) -> None:
    for country, part in (("NO", EVENTS.slice(0, 40)), ("SE", EVENTS.slice(40))):
        (tmp_path / f"country={country}" / "year=2024").mkdir(parents=True)
        pyarrow.parquet.write_table(part, tmp_path / f"country={country}" / "year=2024" / "0.parquet")
    table = to_table(tmp_path, what="the events")
    assert table["country"].to_pylist() == ["NO"] * 40 + ["SE"] * 20
    assert table["year"].unique().to_pylist() == [2024]


def test_a_users_file_beside_the_parts_is_the_users_table(tmp_path: Path) -> None:
    folder = parts(tmp_path / "shop")
    pyarrow.csv.write_csv(USERS, folder / "users.csv")
    assert fs.read_events(folder).fingerprint() == fs.read_events(EVENTS, users=USERS).fingerprint()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pd.cut([10, 20, 30, 20, 10, 30, 20], [0, 15, 25, 40]), {"(0, 15]", "(15, 25]", "(25, 40]"}),
        ([pd.Interval(0, 15)] * 3 + [pd.Interval(15, 40)] * 4, {"(0, 15]", "(15, 40]"}),
        ([("F", "x")] * 3 + [("M", "y")] * 4, {"F,x", "M,y"}),
        ([("F", 18)] * 3 + [("M", 18)] * 4, {"F,18", "M,18"}),
        (pd.period_range("2024-01", periods=7, freq="M"), {f"2024-0{n}" for n in range(1, 8)}),
        (["a,b", "a"] * 3 + [None], {"a,b", "a"}),
    ],
    ids=["pd.cut", "intervals as objects", "tuples", "tuples of mixed kinds", "periods", "values with a comma"],
)
def test_groups_of_intervals_and_tuples(values: Any, names: set[str]) -> None:
    people = pd.DataFrame({"user_id": range(7), "segment": pd.Series(values)})
    log = fs.read_events(EVENTS, users=people, group="segment")
    assert log.groups is not None
    assert set(log.groups.names) == names


def test_structs_are_tuples() -> None:
    people = pl.from_arrow(USERS).select("user_id", segment=pl.struct("plan", pl.col("user_id") % 2))
    log = fs.read_events(EVENTS, users=people, group="segment")
    assert log.groups is not None
    assert set(log.groups.names) == {"free,0", "paid,1"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([], "are empty"),
        (iter([EVENTS, 5]), "list_iterator of int"),
        ([EVENTS, pa.table({"user_id": [[1]]})], "do not fit together"),
        ([{"user_id": 1, "item_id": "a", "timestamp": "yesterday"}], "ISO 8601"),
        ("no-such-*.csv", "no file matches"),
        ("nowhere://bucket/x.csv", "nowhere://bucket/x.csv"),
        ("memory://none/x.csv", "memory://none/x.csv"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(source: Any, words: str) -> None:
    with pytest.raises(fs.DataError) as caught:
        fs.read_events(source)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_in_another_encoding_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(fs.DataError, match="not UTF-8 text; save it as UTF-8"):
        fs.read_events(written(tmp_path / "e.csv", text().decode().encode("utf-16")))


def test_an_archive_of_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "e.csv.zip", "w") as archive:
        archive.writestr("one.csv", text())
        archive.writestr("two.csv", text())
    with pytest.raises(fs.DataError, match="must hold one file, but holds 2"):
        fs.read_events(tmp_path / "e.csv.zip")


class TestWhatIsLeftOut:
    REPEATED = pa.table({"user": [1, 1, 2, 1, 2], "item": [5, 6, 5, 5, 5], "time": [1, 2, 3, 4, 5]})

    @pytest.mark.parametrize("read", ["in memory", "ingested"])
    def test_repeats_are_counted_and_kept_where_asked(self, read: str, tmp_path: Path) -> None:
        def log_of(**options: Any) -> fs.EventLog:
            if read == "in memory":
                return fs.read_events(self.REPEATED, **options)
            return fs.ingest(self.REPEATED, tmp_path / f"log{len(options)}", **options)

        first, every = log_of(), log_of(repeats="all")
        assert (len(first), len(every)) == (3, 5)
        assert "2 repeated (user, item) pair(s) left out" in first.notes[0]
        assert "2 events repeat a (user, item) pair and are kept" in every.notes[0]
        assert every.items.tolist() == [0, 1, 0, 0, 0]

    def test_they_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, logger="fairstream"):
            log = fs.read_events(self.REPEATED)
        assert [record.getMessage() for record in caplog.records] == list(log.notes)

    def test_another_word_is_refused(self) -> None:
        with pytest.raises(fs.ConfigurationError, match="repeats must be 'first' or 'all'"):
            fs.read_events(self.REPEATED, repeats="last")  # type: ignore[arg-type]

    def test_events_without_a_rating_are_counted(self) -> None:
        rated = self.REPEATED.append_column("rating", pa.array([5.0, None, float("nan"), 1.0, 4.0]))
        assert fs.read_events(rated).notes[0] == "2 of 5 events have rating > 2 and are kept (2 have no rating)"

    def test_users_that_match_nobody_are_an_error(self) -> None:
        others = USERS.set_column(0, "user_id", pa.array(range(100, 107)))
        with pytest.raises(fs.DataError, match=r"none of the 7 users .* such as 1, .* such as 100"):
            fs.read_events(EVENTS, users=others)

    def test_users_that_match_in_part_are_counted(self) -> None:
        log = fs.read_events(EVENTS, users=USERS.slice(0, 5))
        assert any("2 of 7 users have no plan (2 of them are not in the users table)" in note for note in log.notes)
        whole = fs.read_events(EVENTS, users=USERS)
        assert any("1 of 7 users have no plan: they count" in note for note in whole.notes)


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz", "e.csv.bz2", "e.csv.zst", "e.csv.zip", "e.jsonl"])
def test_arrows_threads_never_hold_a_python_stream(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that such a thread drops while the interpreter ends aborts the process: exit code 134 instead of 2."""
    text = '{"user": 1, "item": 2, "time": 3}\n' if name.endswith("jsonl") else "user,item,time\n1,2,3\n007,2,4\n"
    content, path = text.encode(), tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("e.csv", content)
    else:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd_compress}
        path.write_bytes(compress.get(path.suffix, bytes)(content))
    sources = []

    def spy(read: Any) -> Any:
        def reader(source: Any, **options: Any) -> pa.Table:
            sources.append(source)
            return read(source, **options)

        return reader

    monkeypatch.setattr(pyarrow.csv, "read_csv", spy(pyarrow.csv.read_csv))
    monkeypatch.setattr(pyarrow.json, "read_json", spy(pyarrow.json.read_json))
    table = to_table(str(path), what="the events")
    assert table["user"].to_pylist() == ([1] if name.endswith("jsonl") else ["1", "007"])
    assert {type(source) for source in sources} <= {pa.OSFile, pa.BufferReader}


def zstd_compress(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)
