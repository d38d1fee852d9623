"""The archives as they are downloaded: MovieLens-1M, MovieLens-100K, and ModCloth of marketBias."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairstream import DataError, EventLog, read_events
from raw_layouts import PEOPLE, RATINGS, REVIEWS, Row, write_1m, write_100k, write_modcloth


def told_by(log: EventLog) -> list[tuple[object, object]]:
    users, items = log.user_ids.ids.to_pylist(), log.item_ids.ids.to_pylist()
    return [(users[u], items[i]) for u, i in zip(log.users, log.items, strict=True)]


def groups_told_by(log: EventLog) -> dict[object, int]:
    assert log.groups is not None
    return dict(zip(log.user_ids.ids.to_pylist(), log.groups.codes.tolist(), strict=True))


@pytest.mark.parametrize("write", [write_1m, write_100k])
def test_movielens_is_read_as_it_is_downloaded(write: Callable[[Path], Path], tmp_path: Path) -> None:
    log = read_events(write(tmp_path), group="gender")
    assert told_by(log) == [(2, 1193), (3, 661), (1, 1193), (1, 661)]
    assert log.times.tolist() == [978298413, 978299001, 978300760, 978302109]
    assert log.groups is not None
    assert (log.groups.attribute, log.groups.names) == ("gender", ("M", "F"))
    assert groups_told_by(log) == {2: 0, 3: 0, 1: 1}
    assert "4 of 6 events have rating > 2" in log.notes[0]


@pytest.mark.parametrize("write", [write_1m, write_100k])
def test_gender_is_the_group_of_movielens_unless_another_is_asked_for(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = write(tmp_path)
    assert read_events(folder).fingerprint() == read_events(folder, group="gender", advantaged="M").fingerprint()
    by_age = read_events(folder, group="age", advantaged=25).groups
    assert by_age is not None
    assert by_age.names == ("25", "56", "1", "45")  # users 3, 2, 1, and one without events
    both = read_events(folder, group="gender,age", advantaged="F,1").groups
    assert both is not None
    assert both.names == ("F,1", "M,56", "M,25", "M,45")


@pytest.mark.parametrize("write", [write_1m, write_100k])
def test_zip_codes_stay_as_they_are_written(write: Callable[[Path], Path], tmp_path: Path) -> None:
    log = read_events(write(tmp_path, people=[PEOPLE[0], PEOPLE[3]]), group="zip", advantaged="02460")
    assert log.groups is not None
    assert log.groups.names == ("02460", "48067")


@pytest.mark.parametrize("write", [write_1m, write_100k])
@pytest.mark.parametrize(
    "bad",
    [
        (1, 2, 3),
        (1, 2, 3, 4, 5),
        ("one", 2, 3, 978300760),
        (1, "two", 3, 978300760),
        (1, 2, "good", 978300760),
        (1, 2, 3, "yesterday"),
    ],
    ids=str,
)
def test_a_malformed_rating_is_refused_with_the_name_of_the_file(
    write: Callable[[Path, list[Row]], Path], bad: Row, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        read_events(write(tmp_path, [*RATINGS, bad]), group="gender")
    message = str(caught.value)
    assert "\n" not in message
    assert "ratings.dat" in message or "u.data" in message


@pytest.mark.parametrize("write", [write_1m, write_100k])
def test_a_rating_without_a_user_is_refused(write: Callable[[Path, list[Row]], Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\A[^\n]*1 of 5 are missing[^\n]*\Z"):
        read_events(write(tmp_path, [*RATINGS, ("", 2, 3, 978300760)]), group="gender")


@pytest.mark.parametrize(("write", "name"), [(write_1m, "users.dat"), (write_100k, "u.user")])
def test_a_malformed_user_is_refused_with_the_name_of_the_file(
    write: Callable[[Path], Path], name: str, tmp_path: Path
) -> None:
    folder = write(tmp_path)
    with (folder / name).open("a") as file:
        file.write("5,M,25,15,55117\n")
    with pytest.raises(DataError, match=rf"\A[^\n]*{name}[^\n]*user_id[^\n]*\Z"):
        read_events(folder, group="gender")


@pytest.mark.parametrize(("write", "name"), [(write_1m, "ratings.dat"), (write_100k, "u.data")])
def test_an_empty_file_is_refused_with_its_name(write: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / name).write_text("")
    with pytest.raises(DataError, match=rf"\A[^\n]*{name}[^\n]*\Z"):
        read_events(folder, group="gender")


@pytest.mark.parametrize("name", ["ratings.dat", "users.dat"])
def test_half_an_archive_is_no_archive(name: str, tmp_path: Path) -> None:
    (write_1m(tmp_path) / name).unlink()
    with pytest.raises(DataError, match=r"\A[^\n]*must hold interactions[^\n]*MovieLens[^\n]*movies.dat[^\n]*\Z"):
        read_events(tmp_path)


def test_modcloth_is_read_as_it_is_downloaded(tmp_path: Path) -> None:
    log = read_events(write_modcloth(tmp_path))
    assert told_by(log) == [("Alex", 7443), ("Robyn", 7443), ("Alex", 11960), ("De, Anna", 16411)]
    assert log.times.astype(str).tolist()[0] == "2010-01-21T08:00:00.000000"
    assert log.times.astype(str).tolist()[-1] == "2019-06-27T00:20:52.125000"
    assert log.groups is not None
    assert (log.groups.attribute, log.groups.names) == ("body_shape", ("Small", "Large"))
    assert groups_told_by(log) == {"Alex": 0, "Robyn": 1, "De, Anna": 0}


def test_the_first_body_shape_that_a_user_gives_counts(tmp_path: Path) -> None:
    shapes = {"Ann": ["Small", "Large"], "Bo": ["Large", "Small"], "Cy": ["Small", "Small"]}
    times = ["2010-01-21 08:00:00+00:00", "2011-01-21 08:00:00+00:00"]
    reviews = [(item, user, 5, times[item], shapes[user][item]) for item in (0, 1) for user in shapes]
    log = read_events(write_modcloth(tmp_path, reviews), advantaged="Small")
    assert groups_told_by(log) == {"Ann": 0, "Bo": 1, "Cy": 0}


def test_modcloth_ids_may_be_integers(tmp_path: Path) -> None:
    reviews = [(item, number if user else "", *rest) for number, (item, user, *rest) in enumerate(REVIEWS)]
    log = read_events(write_modcloth(tmp_path, reviews))
    assert log.user_ids.ids.to_pylist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((1, "Zoe", 4, "yesterday", "Small"), ["yesterday"]),
        ((1, "Zoe", 4, "", "Small"), ["needs a time", "timestamp"]),
        ((1, "Zoe", "good", "2010-01-21 08:00:00+00:00", "Small"), ["rating"]),
        (("", "Zoe", 4, "2010-01-21 08:00:00+00:00", "Small"), ["missing"]),
        ((1, "Zoe, too", 4, "2010-01-21 08:00:00+00:00", "Small"), ["df_modcloth.csv", "12 columns"]),
    ],
    ids=["time", "no time", "rating", "no item", "one comma too many"],
)
def test_a_malformed_review_is_refused_in_one_sentence(bad: Row, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_events(write_modcloth(tmp_path, [*REVIEWS, bad]))
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("reviews", [[], [REVIEWS[1]]], ids=["none at all", "none of a known body shape"])
def test_modcloth_without_usable_reviews_is_refused_in_one_sentence(reviews: list[Row], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\A[^\n]+\Z"):
        read_events(write_modcloth(tmp_path, reviews))


def test_a_csv_file_with_another_header_is_a_plain_one(tmp_path: Path) -> None:
    """Only ModCloth's own layout leaves out those whose body shape is not known."""
    path = write_modcloth(tmp_path, REVIEWS[:3])
    assert "carolyn.agan" not in read_events(path).user_ids.ids.to_pylist()
    path.write_text(path.read_text().replace("model_attr", "other_attr", 1))
    log = read_events(path)
    assert "carolyn.agan" in log.user_ids.ids.to_pylist()
    assert log.groups is None


@pytest.mark.slow
class TestFromTheRealData:
    """The prepared folders written in the raw layouts and read back."""

    N = 20_000

    def movielens(self, paper_data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
        events = pd.read_parquet(paper_data / "movielens-1m" / "interactions.parquet").head(self.N)
        events = events.rename(columns={"timestamp": "order"})  # as `fairstream data get` calls it
        users = pd.read_parquet(paper_data / "movielens-1m" / "users.parquet")
        return events.assign(user_id=events.user_id + 1, item_id=events.item_id + 1), users.assign(
            user_id=users.user_id + 1
        )

    @pytest.mark.parametrize("write", [write_1m, write_100k])
    def test_movielens(self, write: Callable[..., Path], paper_data: Path, tmp_path: Path) -> None:
        events, users = self.movielens(paper_data)
        decoys = events.sample(3_000, random_state=0)
        decoys = decoys.assign(item_id=decoys.item_id.to_numpy()[::-1], rating=np.arange(3_000) % 2 + 1)
        rated = pd.concat([events.assign(rating=5), decoys]).sort_values(["user_id", "rating"], kind="stable")
        zips = ["48067", "98107-2117", "02460"]
        log = read_events(
            write(
                tmp_path,
                rated[["user_id", "item_id", "rating", "order"]].itertuples(index=False),
                [(u.user_id, u.gender, u.age, u.occupation, zips[u.user_id % 3]) for u in users.itertuples()],
            )
        )
        expected = read_events(events.astype({"order": "int64"}), users=users, group="gender", advantaged="M")
        assert log.fingerprint() == expected.fingerprint()
        assert len(log) == self.N
        assert f"{self.N} of {self.N + 3_000} events" in log.notes[0]

    def test_modcloth(self, paper_data: Path, tmp_path: Path) -> None:
        events = pd.read_parquet(paper_data / "modcloth" / "interactions.parquet").tail(self.N)
        users = pd.read_parquet(paper_data / "modcloth" / "users.parquet")
        shapes = users.set_index("user_id").body_shape
        reviews: list[Row] = []
        for event in events.itertuples():
            time = str(event.timestamp)
            reviews.append((event.item_id, f"user {event.user_id}", 5, time, shapes[event.user_id]))
            if event.Index % 7 == 0:
                reviews.append(
                    (event.item_id + 1, f"user {event.user_id}", event.Index % 2 + 1, time, shapes[event.user_id])
                )
                reviews.append((event.item_id, f"stranger {event.user_id}", 5, time, ""))
                reviews.append((event.item_id, "", 5, time, "Small"))
        log = read_events(write_modcloth(tmp_path, reviews))
        expected = read_events(
            events.assign(user_id="user " + events.user_id.astype(str)),
            users=users.assign(user_id="user " + users.user_id.astype(str)),
            group="body_shape",
            advantaged="Small",
        )
        assert log.fingerprint() == expected.fingerprint()
        assert len(log) == self.N
