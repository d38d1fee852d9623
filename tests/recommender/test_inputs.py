"""Events as people have them: without groups, with repeats, with users and groups named at the fit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream as fs
from support import make_recommender

STREAM = fs.synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
FIRST, LATER = STREAM.events.slice(0, 1500), STREAM.events.slice(1500)
FAST: dict[str, dict[str, Any]] = {
    "item-item": {},
    "popularity": {},
    "mf": {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"},
    "sasrec": {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"},
    "blend": {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "device": "cpu"},
}


def with_repeats() -> pa.Table:
    """The stream with every third event of its first part again at the end of that part, and some in the later one."""
    again = FIRST.take(list(range(0, 1500, 3)))
    times = [FIRST["time"][-1].as_py()] * len(again)
    again = again.set_column(again.column_names.index("time"), "time", pa.array(times, FIRST["time"].type))
    return pa.concat_tables([FIRST, again, LATER])


class TestWithoutGroups:
    @pytest.mark.few(2)
    @pytest.mark.parametrize("model", FAST)
    def test_everything_but_fairness_works(self, model: str, tmp_path: Path) -> None:
        rec = make_recommender(model, **FAST[model]).fit(FIRST)
        assert any("there are no groups: nothing is done for fairness" in note for note in rec.notes)
        scores = rec.evaluate(LATER, n_resamples=50)["ndcg@20"]
        assert scores.mean is not None
        assert scores.mean > 0
        assert (dict(scores.by_group), scores.disparity) == ({}, None)
        rec.update(LATER)
        rec.save(tmp_path / "model")
        users = LATER["user_id"][:20]
        assert fs.load(tmp_path / "model").recommend(users) == rec.recommend(users)
        assert rec.forget(users) > 0
        assert rec.state.groups.is_empty

    def test_it_is_what_no_fairness_loss_gives(self) -> None:
        without = make_recommender("mf", **FAST["mf"]).fit(FIRST)
        users = LATER["user_id"][:20]
        plain = make_recommender("mf", fairness_weight=0, **FAST["mf"]).fit(FIRST, users=STREAM.users)
        assert without.recommend(users) == plain.recommend(users)

    def test_users_that_come_later_change_nothing_and_it_is_said(self) -> None:
        rec = make_recommender("item-item").fit(FIRST).update(LATER, users=STREAM.users)
        assert any("users have no effect" in note for note in rec.notes)

    def test_a_gap_cannot_be_held_without_groups(self) -> None:
        with pytest.raises(fs.ConfigurationError, match="MaxGap is about a gap between groups, but there are none"):
            make_recommender("item-item", max_gap=0.02).fit(FIRST)


class TestNamedAtTheFit:
    def test_groups(self) -> None:
        people = STREAM.users.append_column("third", pa.array([n % 3 for n in range(len(STREAM.users))]))
        log = fs.read_events(FIRST, users=people, group="third", advantaged=1)
        named = make_recommender("mf", **FAST["mf"]).fit(FIRST, users=people, group="third", advantaged=1)
        read_first = make_recommender("mf", **FAST["mf"]).fit(log)
        assert named.state.groups.names == read_first.state.groups.names
        assert named.state.groups.names[0] == "1"
        assert named.recommend(FIRST["user_id"][:9]) == read_first.recommend(FIRST["user_id"][:9])

    @pytest.mark.parametrize("option", ["users", "group", "advantaged", "items"])
    def test_not_twice(self, option: str) -> None:
        with pytest.raises(fs.ConfigurationError, match=f"give {option} to read_events"):
            make_recommender("mf").fit(fs.read_events(FIRST), **{option: "community"})

    def test_notes_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, logger="fairstream"):
            rec = make_recommender("item-item").fit(FIRST)
        assert [record.getMessage() for record in caplog.records] == list(rec.notes)

    def test_a_decision_is_no_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        rec = make_recommender("item-item", strategy=fs.RestartOnDegradation()).fit(FIRST, users=STREAM.users)
        with caplog.at_level(logging.INFO, logger="fairstream"):
            rec.update(LATER)
        levels = {record.getMessage(): record.levelno for record in caplog.records}
        [decision] = [note for note in rec.notes if note.startswith("no restart")]
        assert levels[decision] == logging.INFO


class TestRepeats:
    @pytest.mark.parametrize("model", ["item-item", "mf", "blend"])
    def test_tests_are_about_new_items_alone(self, model: str) -> None:
        """The same model is tested on the same events whether or not the test events hold repeats too."""
        log = fs.read_events(FIRST, users=STREAM.users, repeats="all")
        rec = make_recommender(model, **FAST[model]).fit(log)
        repeated = pa.concat_tables([LATER, FIRST.slice(0, 50), LATER])
        times = pa.array([LATER["time"][-1].as_py()] * len(repeated), LATER["time"].type)
        repeated = repeated.set_column(repeated.column_names.index("time"), "time", times)
        asked = repeated.slice(0, len(LATER))
        alone, beside = (rec.evaluate(events, n_resamples=0)["ndcg@20"].mean for events in (asked, repeated))
        assert alone == beside
        with pytest.raises(fs.DataError, match="learned from every one"):
            rec.evaluate(FIRST)

    def test_each_counts_for_popularity_and_in_the_history(self) -> None:
        events = with_repeats()
        first, every = (
            make_recommender("popularity").fit(events, users=STREAM.users),
            make_recommender("popularity").fit(fs.read_events(events, users=STREAM.users, repeats="all")),
        )
        assert (len(first.state.history), len(every.state.history)) == (2000, 2500)
        assert not np.allclose(first.state.history.recent_popularity, every.state.history.recent_popularity)

    def test_updates_keep_them_too(self) -> None:
        log = fs.read_events(FIRST, users=STREAM.users, repeats="all")
        rec = make_recommender("item-item").fit(log)
        rec.update(pa.concat_tables([FIRST.slice(1400), LATER]))
        assert len(rec.state.history) == 2100
        assert len(rec.state.history) > len(rec.state.history.seen)

    def test_item_item_knows_a_pair_once_however_it_is_updated(self) -> None:
        events = with_repeats()
        once = make_recommender("item-item").fit(events, users=STREAM.users)
        log = fs.read_events(events.slice(0, 1300), users=STREAM.users, repeats="all")
        rec = make_recommender("item-item").fit(log)
        for start in range(1300, 2500, 400):
            rec.update(events.slice(start, 400), users=STREAM.users)
        np.testing.assert_allclose(rec.model.counts.numpy(), once.model.counts.numpy(), atol=1e-9)


class TestUpdatesSayWhatIsUnusual:
    def test_a_new_group(self) -> None:
        rec = make_recommender("item-item").fit(FIRST, users=STREAM.users)
        people = STREAM.users.to_pandas().assign(user_id=lambda frame: frame.user_id + 5000, community="ZZ")
        rec.update(LATER.to_pandas().assign(user_id=lambda frame: frame.user_id + 5000), users=people)
        assert any("new value(s) of community, each a group from now on: 'ZZ'" in note for note in rec.notes)

    @pytest.mark.parametrize("zones", [("UTC", None), (None, "Europe/Oslo")])
    def test_times_with_and_without_a_zone(self, zones: tuple[str | None, str | None]) -> None:
        first, later = (
            part.set_column(
                part.column_names.index("time"),
                "time",
                pa.array(np.arange(len(part)) * 10**9, pa.timestamp("us", zone)),
            )
            for part, zone in zip((FIRST, LATER), zones, strict=True)
        )
        rec = make_recommender("item-item").fit(first, users=STREAM.users).update(later)
        assert any("unlike the earlier ones" in note for note in rec.notes)
        again = (
            make_recommender("item-item")
            .fit(first, users=STREAM.users)
            .update(first.slice(0, 9).set_column(1, "item_id", pa.array([900] * 9)))
        )
        assert not any("unlike the earlier ones" in note for note in again.notes)

    def test_a_users_table_that_has_nobody_of_them(self) -> None:
        rec = make_recommender("item-item").fit(FIRST, users=STREAM.users)
        people = STREAM.users.to_pandas().assign(user_id=lambda frame: frame.user_id + 5000)
        rec.update(LATER, users=people)
        assert any("a community for none of the" in note for note in rec.notes)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda rec: rec.update(None), "the events must be a path or a table"),
        (lambda rec: rec.evaluate(None), "the events must be a path or a table"),
        (lambda rec: rec.evaluate(LATER, n_resamples="a"), "n_resamples >= 0, got 20 and 'a'"),
        (lambda rec: rec.evaluate(LATER, min_group_size=1.5), "min_group_size must be >= 1 .* got 1.5"),
        (lambda rec: rec.evaluate(LATER, metrics={"m": lambda lists, truth: "x"}), "must return numbers.* 'x'"),
        (
            lambda rec: rec.fit({"user_id": 1, "item_id": 2, "time": 3}),
            "the events must be columns by name, .* 'user_id'",
        ),
        (lambda rec: rec.fit(fs.read_events(FIRST, rating_above="x")), "rating_above must be a number, got 'x'"),
    ],
)
def test_what_cannot_be_read_or_measured_is_one_sentence(call: Any, sentence: str) -> None:
    rec = fs.FairRecommender("popularity", device="cpu").fit(FIRST, users=STREAM.users)
    with pytest.raises((fs.ConfigurationError, fs.DataError), match=sentence):
        call(rec)
