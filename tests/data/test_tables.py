"""Which column is which, and what counts as a table."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fairstream import ConfigurationError, DataError
from fairstream.data import Columns
from fairstream.data.reading import find_file, to_table

CONTENT = {"user": ["é", "b", None], "n": [1, 2, 3]}


def one_sentence(caught: pytest.ExceptionInfo[DataError], *words: str) -> None:
    message = str(caught.value)
    assert "\n" not in message
    assert ". " not in message
    assert all(word in message for word in words), message


def table_with(*names: str) -> pa.Table:
    return pa.table({name: pa.array([], pa.int64()) for name in names})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("user_id", "item_id", "timestamp", "rating"), ("user_id", "item_id", "timestamp", "rating")),
        (("userId", "movieId", "rating", "timestamp"), ("userId", "movieId", "timestamp", "rating")),
        (("DATE", "Customer_ID", "Product_ID", "Stars"), ("Customer_ID", "Product_ID", "DATE", "Stars")),
        (("user", "item", "order"), ("user", "item", "order", None)),
        (("visitor_id", "article_id", "event_time"), ("visitor_id", "article_id", "event_time", None)),
        (("uid", "iid", "ts", "weight"), ("uid", "iid", "ts", None)),
    ],
    ids=lambda names: " ".join(map(str, names)),
)
def test_usual_names_are_recognised_in_any_case(names: tuple[str, ...], expected: tuple[str | None, ...]) -> None:
    table, columns = table_with(*names), Columns()
    found = tuple(columns.find_optional(role, table, what="it") for role in ("user", "item", "time", "rating"))
    assert found == expected


@pytest.mark.parametrize("names", [("user_id", "user"), ("user", "user_id")], ids=" ".join)
def test_the_more_usual_name_wins_wherever_it_stands(names: tuple[str, ...]) -> None:
    assert Columns().find("user", table_with(*names), what="it") == "user_id"


def test_a_given_name_wins_over_a_usual_one() -> None:
    assert Columns(user="who").find("user", table_with("user_id", "who"), what="it") == "who"


def test_a_given_name_is_taken_to_the_letter() -> None:
    with pytest.raises(DataError) as caught:
        Columns(user="User_ID").find("user", table_with("user_id", "item_id"), what="the events table")
    one_sentence(caught, "the events table", "no column 'User_ID'", "user_id, item_id")


@pytest.mark.parametrize("role", ["user", "item", "time", "rating"])
def test_a_missing_column_is_named_with_the_way_to_name_it(role: str) -> None:
    with pytest.raises(DataError) as caught:
        Columns().find(role, table_with("a", "b"), what="the events table")
    one_sentence(caught, "the events table", role, "a, b", f"{role}_column", f"--{role}-column")
    assert Columns().find_optional(role, table_with("a", "b"), what="the events table") is None


def test_the_number_of_an_order_is_no_time_where_another_column_may_be() -> None:
    by_type = table_with("order").append_column("when", pa.array([], pa.timestamp("us")))
    assert Columns(time="order").find("time", by_type, what="it") == "order"
    for table, names in ((by_type, "when"), (table_with("order", "Paid_At", "sent_date"), "Paid_At, sent_date")):
        with pytest.raises(DataError) as caught:
            Columns().find("time", table, what="the events table")
        one_sentence(caught, "'order'", names, "time_column", "--time-column")


@pytest.mark.parametrize("unit", ["seconds", "", "S", 1000])
def test_a_time_unit_is_one_of_four(unit: object) -> None:
    with pytest.raises(ConfigurationError, match="time_unit must be one of s, ms, us, ns, got"):
        Columns(time_unit=unit)  # type: ignore[arg-type]


def test_a_table_without_columns_is_said_to_have_none() -> None:
    with pytest.raises(DataError) as caught:
        Columns().find("user", pa.table({}), what="the events table")
    one_sentence(caught, "no columns")


def write_csv(path: Path) -> Path:
    pyarrow.csv.write_csv(pa.table(CONTENT), path)
    return path


def write_parquet(path: Path) -> Path:
    pyarrow.parquet.write_table(pa.table(CONTENT), path)
    return path


FORMS = {
    "Arrow table": lambda folder: pa.table(CONTENT),
    "Arrow chunks": lambda folder: pa.concat_tables([pa.table(CONTENT).slice(0, 1), pa.table(CONTENT).slice(1)]),
    "Arrow batch": lambda folder: pa.record_batch(CONTENT),
    "Arrow reader": lambda folder: pa.table(CONTENT).to_reader(),
    "Arrow views": lambda folder: pa.table({**CONTENT, "user": pa.array(CONTENT["user"], pa.string_view())}),
    "Arrow dictionary": lambda folder: pa.table({**CONTENT, "user": pa.array(CONTENT["user"]).dictionary_encode()}),
    "pandas": lambda folder: pd.DataFrame(CONTENT),
    "pandas category": lambda folder: pd.DataFrame(CONTENT).astype({"user": "category"}),
    "pandas, other index": lambda folder: pd.DataFrame(CONTENT, index=[7, 5, 6]),
    "Polars": lambda folder: pl.DataFrame(CONTENT),
    "Polars category": lambda folder: pl.DataFrame(CONTENT).with_columns(pl.col("user").cast(pl.Categorical)),
    "DuckDB": lambda folder: duckdb.from_arrow(pa.table(CONTENT)),
    "Parquet": lambda folder: write_parquet(folder / "t.parquet"),
    "CSV": lambda folder: write_csv(folder / "t.csv"),
    "a path as a string": lambda folder: str(write_csv(folder / "t.csv")),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_read_from_whatever_holds_it(form: str, tmp_path: Path) -> None:
    table = to_table(FORMS[form](tmp_path), what="it")
    assert table.select(["user", "n"]).to_pydict() == CONTENT


@pytest.mark.parametrize("form", FORMS)
def test_the_columns_of_a_table_can_be_taken_from_and_counted(form: str, tmp_path: Path) -> None:
    """What reading does with columns; Arrow itself does it to neither views nor dictionaries of views."""
    table = to_table(FORMS[form](tmp_path), what="it")
    assert table["user"].take(pa.array([1, 0])).to_pylist() == ["b", "é"]
    assert table.filter(pa.array([False, True, True]))["user"].to_pylist() == ["b", None]
    assert len(table["user"].unique()) == 3


@pytest.mark.parametrize("source", [None, 5, [1, 2], [[1]], b"events.csv"], ids=repr)
def test_what_is_no_table_is_refused_by_its_type(source: object) -> None:
    with pytest.raises(DataError) as caught:
        to_table(source, what="the events")
    one_sentence(caught, "the events", "path or a table", type(source).__name__)


@pytest.mark.parametrize(
    "source",
    [pd.DataFrame({"user": pd.Series([1, "a"], dtype=object)}), pa.array([1, 2]), pl.Series("user", [1, 2])],
    ids=["a column of mixed kinds", "an array", "a series"],
)
def test_what_arrow_cannot_make_a_table_of_is_refused(source: object) -> None:
    with pytest.raises(DataError) as caught:
        to_table(source, what="the events", names=["user"])
    one_sentence(caught, "the events")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        to_table(tmp_path / "none.csv", what="the users")
    one_sentence(caught, "the users", "no file", "none.csv")


@pytest.mark.parametrize("name", ["events.xlsx", "events.parquet.gz", "events"])
def test_a_file_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("user,item\n1,2\n")
    with pytest.raises(DataError) as caught:
        to_table(tmp_path / name, what="the events")
    one_sentence(caught, "the events", name, ".parquet or .csv")


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("short.parquet", "PAR1", "parquet"),
        ("long.parquet", "user,item\n1,2\n" * 20, "parquet"),
        ("empty.csv", "", "csv"),
        ("ragged.csv", "user,item\n1,2\n3\n", "csv"),
    ],
    ids=["short.parquet", "long.parquet", "empty.csv", "ragged.csv"],
)
def test_a_file_that_cannot_be_read_is_named(name: str, content: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        to_table(tmp_path / name, what="the events")
    one_sentence(caught, "the events", name, f"cannot be read as {kind}")


def test_of_two_files_the_parquet_one_is_found(tmp_path: Path) -> None:
    assert find_file(tmp_path, "users") is None
    (tmp_path / "users.parquet").mkdir()
    assert find_file(tmp_path, "users") is None
    (tmp_path / "users.csv").touch()
    assert find_file(tmp_path, "users") == tmp_path / "users.csv"
    (tmp_path / "users.parquet").rmdir()
    (tmp_path / "users.parquet").touch()
    assert find_file(tmp_path, "users") == tmp_path / "users.parquet"
