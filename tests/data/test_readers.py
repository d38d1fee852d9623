"""One log, whatever the events come in; one sentence, whatever is wrong with them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import DataError, EventLog, Groups, read_events
from fairstream.data import Columns, read_more_events

NOON = dt.datetime(2024, 5, 1, 12)

STRINGS = {"user": ["ann", "bob", "ann", "cy", "bob", "ann"], "item": ["x", "x", "y", "z", "y", "x"]}
INTEGERS = {"user": [10, 20, 10, 30, 20, 10], "item": [7, 7, 8, 9, 8, 7]}
TIMES = [3, 1, 2, 5, 4, 6]
PEOPLE = ["ann", "bob", "cy"], [10, 20, 30]
GENDERS = ["F", "M", None]


def events_table(*, strings: bool, **other: Any) -> pa.Table:
    """Six events out of order, one pair of them repeated."""
    return pa.table({**(STRINGS if strings else INTEGERS), "time": TIMES, **other})


def users_table(*, strings: bool, genders: list[str | None] = GENDERS) -> pa.Table:
    return pa.table({"user": PEOPLE[0 if strings else 1], "gender": genders})


def refused(*words: str, **arguments: Any) -> None:
    """Reading must end in a DataError of one sentence with these words in it."""
    with pytest.raises(DataError) as caught:
        read_events(**arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert ". " not in message
    assert all(word in message for word in words), message


def to_parquet(table: pa.Table, path: Path) -> Path:
    pyarrow.parquet.write_table(table, path)
    return path


def to_csv(table: pa.Table, path: Path) -> Path:
    pyarrow.csv.write_csv(table, path)
    return path


def in_chunks(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(at, 2) for at in range(0, len(table), 2)])


FORMS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "Arrow chunks": lambda table, path: in_chunks(table),
    "Arrow reader": lambda table, path: table.to_reader(),
    "pandas": lambda table, path: table.to_pandas(),
    "Polars": lambda table, path: pl.from_arrow(table),
    "DuckDB": lambda table, path: duckdb.from_arrow(table),
    "Parquet": lambda table, path: to_parquet(table, path.with_suffix(".parquet")),
    "CSV": lambda table, path: to_csv(table, path.with_suffix(".csv")),
    "CSV, path as a string": lambda table, path: str(to_csv(table, path.with_suffix(".csv"))),
}


class TestOneLogFromEverySource:
    @pytest.mark.parametrize("strings", [True, False], ids=["strings", "integers"])
    @pytest.mark.parametrize("form", FORMS)
    def test_events_and_users_of_any_form(self, form: str, strings: bool, tmp_path: Path) -> None:
        events, users = events_table(strings=strings), users_table(strings=strings)
        expected = read_events(events, users=users, group="gender", advantaged="M")
        log = read_events(
            FORMS[form](events, tmp_path / "events"),
            users=FORMS[form](users, tmp_path / "people"),
            group="gender",
            advantaged="M",
        )
        assert log.fingerprint() == expected.fingerprint()
        assert log.notes == expected.notes
        assert log.groups is not None
        assert log.groups.codes.tolist() == [0, 1, -1]  # bob, ann, cy

    @pytest.mark.parametrize("form", FORMS)
    def test_the_only_column_with_two_values_makes_the_groups(self, form: str, tmp_path: Path) -> None:
        users = users_table(strings=True).append_column("age", pa.array([30, 40, 50]))
        log = read_events(events_table(strings=True), users=FORMS[form](users, tmp_path / "people"))
        assert log.groups is not None
        assert (log.groups.attribute, log.groups.names) == ("gender", ("F", "M"))

    @pytest.mark.parametrize("strings", [True, False], ids=["strings", "integers"])
    @pytest.mark.parametrize("write_events", [to_parquet, to_csv])
    @pytest.mark.parametrize("write_users", [to_parquet, to_csv])
    def test_a_folder(self, write_events: Any, write_users: Any, strings: bool, tmp_path: Path) -> None:
        events, users = events_table(strings=strings), users_table(strings=strings)
        write_events(events, tmp_path / f"interactions.{write_events.__name__[3:]}")
        write_users(users, tmp_path / f"users.{write_users.__name__[3:]}")
        expected = read_events(events, users=users)
        assert read_events(tmp_path).fingerprint() == expected.fingerprint()
        assert read_events(str(tmp_path)).fingerprint() == expected.fingerprint()

    def test_a_folder_without_users_has_no_groups(self, tmp_path: Path) -> None:
        to_csv(events_table(strings=True), tmp_path / "interactions.csv")
        assert read_events(tmp_path).groups is None

    def test_given_users_win_over_those_of_the_folder(self, tmp_path: Path) -> None:
        to_csv(events_table(strings=True), tmp_path / "interactions.csv")
        to_csv(users_table(strings=True), tmp_path / "users.csv")
        log = read_events(tmp_path, users=users_table(strings=True, genders=["M", "M", "F"]))
        assert log.groups is not None
        assert log.groups.codes.tolist() == [0, 0, 1]

    @pytest.mark.parametrize("cast", [pa.int8(), pa.int32(), pa.uint16(), pa.int64()], ids=str)
    def test_the_width_of_integers_does_not_matter(self, cast: pa.DataType) -> None:
        table = events_table(strings=False)
        narrow = table.cast(pa.schema([(name, cast) for name in table.column_names]))
        assert read_events(narrow).fingerprint() == read_events(table).fingerprint()

    def test_the_width_of_floats_does_not_matter(self) -> None:
        halves = [time / 2 for time in TIMES]
        single, double = (
            events_table(strings=True, time=pa.array(halves, kind)) for kind in (pa.float32(), pa.float64())
        )
        assert read_events(single).fingerprint() == read_events(double).fingerprint()

    def test_categories_are_strings(self) -> None:
        events, users = events_table(strings=True), users_table(strings=True)
        expected = read_events(events, users=users).fingerprint()
        as_categories = {"user": "category", "item": "category"}, {"user": "category", "gender": "category"}
        frames = events.to_pandas().astype(as_categories[0]), users.to_pandas().astype(as_categories[1])
        assert read_events(frames[0], users=frames[1]).fingerprint() == expected
        lazy = pl.from_arrow(events), pl.from_arrow(users)
        cast = [frame.with_columns(pl.col(pl.String).cast(pl.Categorical)) for frame in lazy]
        assert read_events(cast[0], users=cast[1]).fingerprint() == expected

    def test_the_synthetic_stream_by_its_name(self) -> None:
        log = read_events("synthetic")
        assert log.groups is not None
        assert (log.groups.attribute, log.groups.names) == ("community", ("majority", "minority"))


TIME_KINDS: dict[str, Callable[[int], Any]] = {
    "integers": lambda n: n,
    "negative integers": lambda n: n - 100,
    "floats": lambda n: n / 7,
    "datetimes": lambda n: NOON + dt.timedelta(seconds=n),
    "datetimes with a zone": lambda n: (NOON + dt.timedelta(seconds=n)).replace(tzinfo=dt.UTC),
    "dates": lambda n: NOON.date() + dt.timedelta(days=n),
}


class TestTimes:
    @pytest.mark.few(16)
    @pytest.mark.parametrize("kind", TIME_KINDS)
    @pytest.mark.parametrize("form", FORMS)
    def test_any_kind_of_time_gives_the_same_order(self, kind: str, form: str, tmp_path: Path) -> None:
        expected = read_events(events_table(strings=True))
        table = events_table(strings=True, time=[TIME_KINDS[kind](time) for time in TIMES])
        log = read_events(FORMS[form](table, tmp_path / "events"))
        assert log.users.tolist() == expected.users.tolist()
        assert log.items.tolist() == expected.items.tolist()
        assert log.fingerprint() == read_events(table).fingerprint()

    @staticmethod
    def fingerprint(times: Any) -> str:
        return read_events(events_table(strings=True, time=times)).fingerprint()

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_the_unit_of_a_timestamp_does_not_matter(self, unit: str) -> None:
        moments = pa.array([NOON + dt.timedelta(seconds=n) for n in TIMES])
        assert self.fingerprint(moments.cast(pa.timestamp(unit))) == self.fingerprint(moments)

    def test_a_zone_says_which_moment_and_no_zone_means_utc(self) -> None:
        naive = pa.array([NOON + dt.timedelta(seconds=n) for n in TIMES], pa.timestamp("us"))
        utc = naive.cast(pa.timestamp("us", "UTC"))
        same_moments_in_tokyo = naive.cast(pa.timestamp("us", "Asia/Tokyo"))
        assert self.fingerprint(utc) == self.fingerprint(same_moments_in_tokyo) == self.fingerprint(naive)

    def test_a_date_is_its_midnight(self) -> None:
        days = [NOON.date() + dt.timedelta(days=n) for n in TIMES]
        midnights = [dt.datetime.combine(day, dt.time()) for day in days]
        assert self.fingerprint(pa.array(days)) == self.fingerprint(midnights)
        assert self.fingerprint(pa.array(days, pa.date64())) == self.fingerprint(midnights)

    @given(st.lists(st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)), min_size=1, max_size=20))
    def test_the_log_has_the_times_of_the_events_in_order(self, moments: list[dt.datetime]) -> None:
        log = read_events(pa.table({"user": list(range(len(moments))), "item": [0] * len(moments), "time": moments}))
        assert log.times.tolist() == sorted(moments)

    @pytest.mark.parametrize(
        ("times", "words"),
        [
            ([1, None, 2, 3, None, 4], ["needs a time", "2 of 6", "'time'"]),
            ([None] * 6, ["needs a time", "6 of 6", "'time'"]),
            ([1.0, float("nan"), 2.0, 3.0, 4.0, 5.0], ["needs a time", "NaN", "'time'"]),
            ([1.0, float("inf"), 2.0, 3.0, 4.0, 5.0], ["needs a time", "infinity", "'time'"]),
            (list("abcdef"), ["ISO 8601", "'time'", "'f' for one"]),
            (["2024-02-29", "2024-02-30", *["2024-03-01"] * 4], ["ISO 8601", "'2024-02-30' for one"]),
            (["1", "9" * 30, *"3456"], ["ISO 8601", f"'{'9' * 30}' for one"]),
            (["2024-02-29", "5", *["2024-03-01"] * 4], ["ISO 8601", "'5' for one"]),
            ([True] * 6, ["integers, floats or timestamps", "'time'", "bool"]),
            ([dt.timedelta(seconds=n) for n in TIMES], ["integers, floats or timestamps", "'time'", "duration"]),
        ],
        ids=[
            *("some null", "all null", "NaN", "infinity", "strings"),
            *("no date", "no integer", "a number", "booleans", "durations"),
        ],
    )
    def test_what_is_no_time_is_refused(self, times: list[Any], words: list[str]) -> None:
        refused(*words, source=events_table(strings=True, time=times))

    def test_missing_times_of_a_frame_are_refused(self) -> None:
        moments = pd.Series(pd.to_datetime(["2024-01-01", None]))
        refused("needs a time", "1 of 2", source=pd.DataFrame({"user": [1, 2], "item": [1, 2], "time": moments}))
        refused("needs a time", source=pd.DataFrame({"user": [1, 2], "item": [1, 2], "time": [1.0, np.nan]}))
        refused("needs a time", source=pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": [1.0, float("nan")]}))


class TestRatings:
    RATED = events_table(strings=True, rating=[5, 3, 2, 1, 4, 3])

    def kept(self, **options: Any) -> tuple[list[int], str]:
        log = read_events(self.RATED, **options)
        return log.times.tolist(), log.notes[0]

    def test_ratings_above_two_are_kept_and_counted(self) -> None:
        times, note = self.kept()
        assert times == [1, 3, 4]  # the pair of time 6 was there at time 3
        assert "4 of 6" in note
        assert "rating > 2" in note

    def test_the_threshold_can_be_changed(self) -> None:
        assert self.kept(rating_above=3.5) == ([3, 4], "2 of 6 events have rating > 3.5 and are kept")
        assert self.kept(rating_above=-1)[0] == [1, 2, 3, 4, 5]

    @given(st.lists(st.floats(0, 5) | st.none(), min_size=1, max_size=20), st.floats(0, 5))
    def test_exactly_the_ratings_above_the_threshold_are_kept(
        self, ratings: list[float | None], rating_above: float
    ) -> None:
        numbers = list(range(len(ratings)))
        table = pa.table({"user": numbers, "item": numbers, "time": numbers, "stars": pa.array(ratings, pa.float64())})
        expected = [at for at, rating in enumerate(ratings) if rating is not None and rating > rating_above]
        if expected:
            assert read_events(table, rating_above=rating_above).times.tolist() == expected
        else:
            refused("none of the" if ratings else "no events", source=table, rating_above=rating_above)

    def test_a_rating_of_another_name_is_given(self) -> None:
        table = self.RATED.rename_columns(["user", "item", "time", "liked"])
        assert len(read_events(table)) == 5
        assert len(read_events(table, rating_column="liked")) == 3
        refused("no column 'likes'", "liked", source=table, rating_column="likes")

    def test_a_pair_counts_from_its_first_event_that_is_kept(self) -> None:
        table = pa.table({"user": [1, 1], "item": [1, 1], "time": [1, 2], "rating": [1, 5]})
        assert read_events(table).times.tolist() == [2]

    @pytest.mark.parametrize("ratings", [list("543x21"), [[5]] * 6], ids=["strings", "lists"])
    def test_what_is_no_rating_is_refused(self, ratings: list[Any]) -> None:
        refused("rating", source=events_table(strings=True, rating=ratings))


class TestColumns:
    def test_usual_names_need_not_be_given(self) -> None:
        expected = read_events(events_table(strings=True)).fingerprint()
        for names in (["user_id", "item_id", "timestamp"], ["userId", "movieId", "ts"], ["UID", "IID", "Date"]):
            assert read_events(events_table(strings=True).rename_columns(names)).fingerprint() == expected

    def test_other_names_are_given(self) -> None:
        events = events_table(strings=True).rename_columns(["who", "what", "when"])
        users = users_table(strings=True).rename_columns(["who", "gender"])
        log = read_events(events, users=users, user_column="who", item_column="what", time_column="when")
        expected = read_events(events_table(strings=True), users=users_table(strings=True))
        assert log.fingerprint() == expected.fingerprint()

    @pytest.mark.parametrize("role", ["user", "item", "time"])
    def test_a_missing_column_is_named(self, role: str) -> None:
        table = events_table(strings=True)
        left = [name for name in table.column_names if name != role]
        refused("the events table", role, ", ".join(left), f"{role}_column", source=table.drop_columns([role]))
        refused("no column 'x'", "user, item, time", source=table, **{f"{role}_column": "x"})

    def test_a_column_that_is_there_twice_is_refused(self) -> None:
        twice = pa.table([[1], [2], [3], [4]], names=["user_id", "user_id", "item_id", "time"])
        refused("user_id", source=twice)
        users = pa.table([["ann"], ["F"], ["M"]], names=["user", "gender", "gender"])
        refused("gender", source=events_table(strings=True), users=users, group="gender")

    @pytest.mark.parametrize("column", ["user", "item"])
    def test_ids_must_not_be_missing(self, column: str) -> None:
        for ids in ([1, None, 2, 3, 4, 5], ["a", None, "b", "c", "d", "e"]):
            refused("1 of 6", "missing", column, source=events_table(strings=True, **{column: ids}))
        frame = events_table(strings=False).to_pandas().astype({column: float})
        frame.loc[1, column] = np.nan
        refused("1 of 6", "missing", column, source=frame)

    def test_an_empty_field_of_a_csv_file_is_a_missing_id(self, tmp_path: Path) -> None:
        (tmp_path / "events.csv").write_text("user,item,time\nann,x,1\n,x,2\n")
        refused("1 of 2", "missing", source=tmp_path / "events.csv")

    @pytest.mark.parametrize("column", ["user", "item"])
    def test_ids_must_be_integers_or_strings(self, column: str) -> None:
        refused("integers or strings", "1.5 for one", source=events_table(strings=True, **{column: [1.5] * 6}))
        mixed = events_table(strings=True).to_pandas().astype({column: object})
        mixed.loc[1, column] = 5
        refused(column, source=mixed)


class TestSources:
    def test_no_events(self, tmp_path: Path) -> None:
        refused("no events", source=events_table(strings=True).slice(0, 0))
        refused("no events", source=events_table(strings=True).slice(0, 0).to_pandas())
        (tmp_path / "events.csv").write_text("user,item,time\n")
        refused("no events", source=tmp_path / "events.csv")

    def test_what_is_not_there_is_named(self, tmp_path: Path) -> None:
        refused("no file or folder", "none.csv", "synthetic", source=tmp_path / "none.csv")
        refused("no file or folder", "nowhere", source=str(tmp_path / "nowhere"))
        refused("users", "no file", "none.csv", source=events_table(strings=True), users=tmp_path / "none.csv")

    def test_a_folder_without_events_is_told_what_it_holds(self, tmp_path: Path) -> None:
        refused("interactions.parquet", "interactions.csv", "holds nothing", source=tmp_path)
        to_csv(users_table(strings=True), tmp_path / "users.csv")
        refused("interactions.parquet", "holds users.csv", source=tmp_path)

    def test_unreadable_files_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "interactions.parquet").write_bytes(b"no parquet at all, but long enough for a footer")
        for source in (tmp_path, tmp_path / "interactions.parquet"):
            refused("interactions.parquet", "cannot be read as parquet", source=source)
        (tmp_path / "ragged.csv").write_text("user,item,time\n1,2,3\n4,5\n")
        refused("ragged.csv", "cannot be read as csv", source=tmp_path / "ragged.csv")
        (tmp_path / "events.xlsx").write_text("{}")
        refused("events.xlsx", ".parquet or .csv", source=tmp_path / "events.xlsx")
        (tmp_path / "lines.jsonl").write_text("{'user': 1}")
        refused("lines.jsonl", "cannot be read as jsonl", source=tmp_path / "lines.jsonl")
        (tmp_path / "packed.csv.gz").write_text("user,item,time\n1,2,3\n")
        refused("packed.csv.gz", "cannot be read as csv", source=tmp_path / "packed.csv.gz")
        (tmp_path / "latin.csv").write_bytes("user,item,time\n1,crème,3\n".encode("latin-1"))
        refused("latin.csv", "column #1: Row #2", "UTF-8", source=tmp_path / "latin.csv")

    @pytest.mark.parametrize("source", [None, 3, [1, 2], [("ann", "x", 1)]], ids=repr)
    def test_what_is_no_source_is_refused(self, source: object) -> None:
        refused("path or a table", type(source).__name__, source=source)


class TestGroups:
    EVENTS = events_table(strings=True)  # rows: bob, ann, cy

    def codes(self, **options: Any) -> list[int]:
        log = read_events(self.EVENTS, **options)
        assert log.groups is not None
        return log.groups.codes.tolist()

    def test_no_users_no_groups(self) -> None:
        log = read_events(self.EVENTS)
        assert log.groups is None
        with pytest.raises(DataError, match="group=COLUMN"):
            log.require_groups()

    def test_the_larger_group_of_the_users_with_events_is_the_advantaged_one(self) -> None:
        users = pa.table({"user": ["ann", "bob", "cy", "dee", "eve", "flo"], "g": list("xyyxxx")})
        assert self.codes(users=users) == [0, 1, 0]
        assert self.codes(users=users, advantaged="x") == [1, 0, 1]

    def test_any_number_of_values_makes_groups(self) -> None:
        users = pa.table({"user": ["dee", "ann", "cy", "bob", "eve"], "age": [60, 20, 30, 40, 50]})
        groups = read_events(self.EVENTS, users=users, group="age", advantaged=30).groups
        assert groups is not None
        assert groups.names == ("30", "40", "20", "50", "60")  # cy, bob, ann, and two without events
        assert groups.codes.tolist() == [1, 2, 0]

    def test_who_is_not_in_the_users_table_is_not_known(self) -> None:
        assert self.codes(users=users_table(strings=True, genders=["F", "M", "M"]).slice(0, 2), advantaged="M") == [
            0,
            1,
            -1,
        ]

    def test_a_user_without_events_changes_nothing(self) -> None:
        users = pa.table({"user": ["zoe", "cy", "bob", "ann"], "g": ["x", "x", "x", "y"]})
        assert self.codes(users=users) == [0, 1, 0]

    @given(st.permutations(range(3)))
    def test_the_order_of_the_users_table_does_not_matter(self, order: list[int]) -> None:
        assert self.codes(users=users_table(strings=True).take(order), advantaged="M") == [0, 1, -1]

    def test_the_same_value_twice_is_one_value(self) -> None:
        users = users_table(strings=True)
        assert self.codes(users=pa.concat_tables([users, users]), advantaged="M") == [0, 1, -1]

    def test_two_values_of_one_user_are_refused(self) -> None:
        users = pa.table({"user": ["ann", "bob", "ann"], "gender": ["F", "M", "M"]})
        refused("one group", "'gender'", "several values", source=self.EVENTS, users=users, group="gender")

    def test_the_group_can_stand_beside_the_events(self) -> None:
        by_user = {"ann": "F", "bob": "M", "cy": "M"}
        events = self.EVENTS.append_column("gender", pa.array([by_user[user] for user in STRINGS["user"]]))
        log = read_events(events, group="gender", advantaged="M")
        assert log.groups is not None
        assert log.groups.codes.tolist() == [0, 1, 0]

    @pytest.mark.parametrize("group", ["gender,age", " gender , age", ["gender", "age"], ("gender", "age")], ids=str)
    @pytest.mark.parametrize("beside", [False, True], ids=["users", "events"])
    def test_several_columns_make_their_intersections(self, group: str | list[str], beside: bool) -> None:
        people = {"ann": ("F", 18), "bob": ("M", 18), "cy": ("F", 25), "dee": ("M", 25)}
        if beside:
            rows = zip(*(people[user] for user in STRINGS["user"]), strict=True)
            source = {"source": events_table(strings=True, **dict(zip(["gender", "age"], rows, strict=True)))}
        else:
            genders, ages = zip(*people.values(), strict=True)
            users = pa.table({"user": list(people), "gender": genders, "age": ages})
            source = {"source": self.EVENTS, "users": users}
        groups = read_events(**source, group=group, advantaged="F,18").groups
        assert groups is not None
        assert groups.attribute == "gender,age"
        assert groups.names == ("F,18", "M,18", "F,25") + (() if beside else ("M,25",))
        assert groups.codes.tolist() == [1, 0, 2]

    def test_who_lacks_a_part_of_an_intersection_is_in_none(self) -> None:
        users = pa.table(
            {"user": ["ann", "bob", "cy", "dee"], "gender": ["F", None, "M", "M"], "age": [18, 18, None, 25]}
        )
        log = read_events(self.EVENTS, users=users, group="gender,age")
        assert log.groups is not None
        assert (log.groups.names, log.groups.codes.tolist()) == (("F,18", "M,25"), [-1, 0, -1])
        assert log.notes[-1] == "2 of 3 users have no gender,age: they count overall and in no group"

    def test_a_column_with_a_comma_in_its_name_is_one_column(self) -> None:
        users = users_table(strings=True).rename_columns(["user", "gender,age"])
        assert self.codes(users=users, group="gender,age", advantaged="M") == [0, 1, -1]

    def test_two_combinations_of_one_user_are_refused(self) -> None:
        users = pa.table({"user": ["ann", "bob", "ann"], "gender": ["F", "M", "F"], "age": [18, 18, 25]})
        refused("one group", "'gender,age'", "several values", source=self.EVENTS, users=users, group="gender,age")

    def test_a_missing_group_column_is_named(self) -> None:
        users = users_table(strings=True)
        refused("users table", "no column 'age'", "user, gender", source=self.EVENTS, users=users, group="gender,age")
        refused("users table", "no column 'sex'", "user, gender", source=self.EVENTS, users=users, group="sex")
        refused("events table", "no column 'sex'", "user, item, time", source=self.EVENTS, group="sex")

    def test_a_users_table_needs_its_user_column(self) -> None:
        users = pa.table({"gender": ["F", "M"]})
        refused("users table", "user column", "gender", source=self.EVENTS, users=users, group="gender")

    def test_several_columns_or_none_with_two_values_ask_for_a_choice(self) -> None:
        users = users_table(strings=True).append_column("paying", pa.array([True, False, True]))
        refused("group=COLUMN", "gender, paying", source=self.EVENTS, users=users)
        assert self.codes(users=users, group="paying", advantaged=True) == [1, 0, 0]
        refused("group=COLUMN", "none", source=self.EVENTS, users=users.select(["user"]))

    def test_columns_that_make_no_groups_are_passed_over(self) -> None:
        nested = pa.array([[1], [2], [1]]), pa.array([{"a": 1}, {"a": 2}, {"a": 1}])
        users = users_table(strings=True).append_column("tags", nested[0]).append_column("more", nested[1])
        assert self.codes(users=users, advantaged="M") == [0, 1, -1]

    @pytest.mark.parametrize(("strings", "kinds"), [(True, ("string", "int64")), (False, ("int64", "string"))])
    def test_ids_must_be_of_one_kind_in_both_tables(self, strings: bool, kinds: tuple[str, str]) -> None:
        events, users = events_table(strings=strings), users_table(strings=not strings)
        refused("one kind", *kinds, source=events, users=users, group="gender")

    def test_users_must_not_be_missing_in_the_users_table(self) -> None:
        users = pa.table({"user": ["ann", "bob", None], "gender": ["F", "M", "M"]})
        refused("1 of 3", "missing", source=self.EVENTS, users=users, group="gender")

    def test_values_that_make_no_groups_are_refused(self) -> None:
        for genders, words in (
            (["F", "F", None], ["groups are compared", "1 value", "'gender'"]),
            ([None] * 3, ["groups are compared", "0 value", "'gender'"]),
        ):
            users = users_table(strings=True, genders=genders)
            refused(*words, source=self.EVENTS, users=users, group="gender")
        crowd = pa.table({"user": ["ann", *map(str, range(100))], "postcode": list(range(101))})
        refused("101 value", "'postcode'", "coarser", source=self.EVENTS, users=crowd, group="postcode")
        users = users_table(strings=True)
        refused("gender = 'W'", "'F', 'M'", source=self.EVENTS, users=users, group="gender", advantaged="W")

    def test_reading_leaves_the_tables_as_they_were(self) -> None:
        events, users = events_table(strings=True).to_pandas(), users_table(strings=True).to_pandas()
        copies = events.copy(), users.copy()
        read_events(events, users=users)
        pd.testing.assert_frame_equal(events, copies[0])
        pd.testing.assert_frame_equal(users, copies[1])


class TestMoreEvents:
    """Later events go into groups that were settled by the first ones."""

    SETTLED = read_events(events_table(strings=True), users=users_table(strings=True), advantaged="F").groups
    NEW = pa.table({"user": ["dee", "ann", "eve"], "item": ["x", "z", "z"], "time": [7, 8, 9]})

    def groups(self, source: Any, users: Any = None) -> Groups | None:
        assert self.SETTLED is not None
        return read_more_events(source, self.SETTLED, Columns(), users=users).groups

    def codes(self, source: Any, users: Any = None) -> list[int] | None:
        groups = self.groups(source, users)
        assert groups is None or groups.names == ("F", "M")
        return None if groups is None else groups.codes.tolist()

    def test_the_polarity_stays_even_where_the_other_group_is_the_larger_one(self) -> None:
        users = pa.table({"user": ["dee", "ann", "eve"], "gender": ["M", "F", "M"]})
        assert self.codes(self.NEW, users) == [1, 0, 1]
        assert self.codes(self.NEW.append_column("gender", users["gender"])) == [1, 0, 1]

    def test_one_group_alone_is_enough(self) -> None:
        assert self.codes(self.NEW, pa.table({"user": ["dee", "eve"], "gender": ["M", "M"]})) == [1, -1, 1]

    def test_where_nothing_is_said_nothing_is_known(self) -> None:
        assert self.codes(self.NEW) is None
        assert self.codes(self.NEW, pa.table({"user": ["dee"], "age": [30]})) is None

    def test_they_are_read_as_the_first_ones_were(self) -> None:
        assert self.SETTLED is not None
        table = pa.table({"who": ["dee", "ann"], "what": ["x", "z"], "when": [7, 8], "liked": [3, 5]})
        read = read_more_events(table, self.SETTLED, Columns("who", "what", "when", "liked", rating_above=4.0))
        assert read.user_ids.ids.to_pylist() == ["ann"]

    def test_a_value_that_nobody_had_becomes_a_group_of_its_own(self) -> None:
        groups = self.groups(self.NEW, pa.table({"user": ["dee", "ann", "eve"], "gender": ["X", "F", "D"]}))
        assert groups is not None
        assert groups.names == ("F", "M", "X", "D")
        assert groups.codes.tolist() == [2, 0, 3]

    def test_intersections_are_made_again(self) -> None:
        users = pa.table({"user": ["ann", "bob"], "gender": ["F", "M"], "age": [18, 25]})
        settled = read_events(events_table(strings=True), users=users, group="gender,age", advantaged="M,25").groups
        assert settled is not None
        later = pa.table({"user": ["dee", "ann", "eve"], "age": [25, 18, 18], "gender": ["M", "F", "M"]})
        groups = read_more_events(self.NEW, settled, Columns(), users=later).groups
        assert groups is not None
        assert groups.names == ("M,25", "F,18", "M,18")
        assert groups.codes.tolist() == [0, 1, 2]
        half = later.drop_columns(["age"])
        assert read_more_events(self.NEW, settled, Columns(), users=half).groups is None


class TestNotesOnUpdates:
    FIRST = read_events(pa.table({"user": ["a", "b"], "item": [1, 2], "time": [10, 20], "g": ["x", "y"]}), group="g")

    def notes(self, table: dict[str, Any], *, last_time: Any = None, users: Any = None, **columns: Any) -> list[str]:
        groups, last_time = self.FIRST.require_groups(), self.FIRST.last_time if last_time is None else last_time
        more = read_more_events(pa.table(table), groups, Columns(**columns), users=users, last_time=last_time)
        return list(more.notes)

    def test_events_after_all_known_ones_with_known_columns_need_none(self) -> None:
        assert self.notes({"user": ["a"], "item": [3], "time": [20], "g": ["x"]}) == []

    def test_events_before_the_latest_known_one_are_counted(self) -> None:
        notes = self.notes({"user": ["a", "b", "b"], "item": [3, 4, 5], "time": [21, 5, 19], "g": ["x", "y", "y"]})
        assert "2 of 3 events are older than the latest known event: they are added after it" in notes

    @pytest.mark.parametrize(("before", "now"), [(20, NOON), (np.datetime64(NOON, "us"), 20), (np.float64(2.5), NOON)])
    def test_timestamps_and_numbers_do_not_mix(self, before: Any, now: Any) -> None:
        with pytest.raises(DataError, match=r"\Athe earlier events have (timestamps|numbers) as times, these have"):
            self.notes({"user": ["a"], "item": [3], "time": [now]}, last_time=np.asarray(before)[()])

    def test_the_unit_given_first_is_that_of_later_numbers(self) -> None:
        table = {"user": ["a"], "item": [3], "time": [1_700_000_000_000], "g": ["x"]}
        assert self.notes(table, last_time=np.datetime64("2023-01-01", "us"), time_unit="ms") == []

    def test_another_unit_of_time_is_noted(self) -> None:
        table = {"user": ["a"], "item": [3], "time": [1_700_000_000_000], "g": ["x"]}
        (note,) = self.notes(table, last_time=np.int64(1_690_000_000))
        assert "seconds since 1970, these like milliseconds" in note

    def test_columns_that_are_not_used_are_named(self) -> None:
        table = {"user": ["a"], "item": [3], "time": [30], "g": ["x"], "price": [9], "shop": ["s"]}
        assert self.notes(table) == ["columns of the events that are not used: price, shop"]
        assert self.notes({"user": ["a"], "item": [3], "time": [30], "g": ["x"], "rating": [5]}) == [
            "1 of 1 events have rating > 2 and are kept"
        ]
        users = pa.table({"user": ["a"], "g": ["x"], "age": [3]})
        assert self.notes({"user": ["a"], "item": [3], "time": [30], "g": ["x"]}, users=users) == [
            "columns of the events that are not used: g"
        ]

    def test_tables_without_the_group_are_noted(self) -> None:
        (note,) = self.notes({"user": ["new"], "item": [3], "time": [30]})
        assert note == "the tables have no column 'g': users who are new are in no group"


def test_users_without_a_group_are_noted() -> None:
    log = read_events(events_table(strings=True), users=users_table(strings=True).slice(0, 2))
    assert log.groups is not None
    n_unknown = int((log.groups.codes == -1).sum())
    assert n_unknown > 0
    assert any(note.startswith(f"{n_unknown} of {log.n_users} users have no gender") for note in log.notes)


def test_the_larger_group_has_more_users_not_more_events() -> None:
    events = pa.table({"user": [1, 1, 1, 2, 3], "item": [1, 2, 3, 1, 1], "time": [1, 2, 3, 4, 5], "g": list("bbbaa")})
    groups = read_events(events, group="g").groups
    assert groups is not None
    assert groups.names == ("a", "b")


def test_only_an_empty_field_of_a_csv_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user,item,time\nNA,null,1\nNaN,x,2\n")
    assert read_events(tmp_path / "events.csv").user_ids.ids.to_pylist() == ["NA", "NaN"]


def test_a_date_is_the_time_before_an_order_number_is() -> None:
    table = pa.table({"user": [1, 2], "item": [1, 2], "order": [1, 2], "date": [20.0, 10.0]})
    assert read_events(table).times.tolist() == [10.0, 20.0]


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("kind", [int, float])
def test_numbers_become_timestamps_where_their_unit_is_given(unit: str, per_second: int, kind: type) -> None:
    """Even for three days after 1970, where a guess takes milliseconds for seconds."""
    seconds = [0, 86_400, 3 * 86_400]
    times = [kind(second * per_second) for second in seconds]
    log = read_events(pa.table({"user": [1, 2, 3], "item": [1, 2, 3], "time": times}), time_unit=unit)
    assert log.times.astype("datetime64[s]").astype(int).tolist() == seconds
    assert log.times.dtype == np.dtype("datetime64[us]")


def test_a_time_unit_does_not_change_timestamps_and_does_not_overflow() -> None:
    table = pa.table({"user": [1], "item": [1], "time": [NOON]})
    assert read_events(table, time_unit="s").times.tolist() == [NOON]
    refused(
        "out of range", "time_unit='s'", source=pa.table({"user": [1], "item": [1], "time": [2**60]}), time_unit="s"
    )


def test_one_log_has_one_shape(log: EventLog) -> None:
    """The stream all other tests stand on, read as a user would."""
    assert len(log.users) == len(log.items) == len(log.times) == len(log) == 4000
    assert log.groups is not None
    assert len(log.groups.codes) == log.n_users
    assert log.users.max() == log.n_users - 1
    assert log.items.max() == log.n_items - 1
    assert (np.diff(log.times) >= 0).all()


@pytest.mark.parametrize("group", [[], 3, ["gender,age"], ["gender", 1]])
def test_what_names_no_columns_is_refused_in_one_sentence(group: object) -> None:
    events = pa.table({"user": ["a", "b"], "item": [1, 2], "time": [1, 2]})
    users = pa.table({"user": ["a", "b"], "gender": ["F", "M"]})
    with pytest.raises(DataError, match="group must be a column"):
        read_events(events, users=users, group=group)  # type: ignore[arg-type]
