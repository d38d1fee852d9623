"""A recommender with a target: it serves a level that past periods support, and survives everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream as fs
from fairstream.models import NO_LEVEL, Level
from support import at_level, make_recommender

N_USERS, N_ITEMS = 2400, 60


def stream(seed: int = 0) -> tuple[pa.Table, pa.Table]:
    """Everybody has six favourites and comes with six events; those of a quarter are not in the lists of the others.

    A list of 20 has room for both, but popularity fills it with what the others like a little.
    """
    rng = np.random.default_rng(seed)
    is_few = rng.random(N_USERS) < 0.25
    appeal = np.full((2, N_ITEMS), 0.5)
    appeal[0, :8], appeal[0, 52:] = 3.0, -3.0
    appeal[1, 52:] = 3.0
    taste = appeal[is_few.astype(int)] + rng.gumbel(size=(N_USERS, N_ITEMS))
    items = np.argsort(-taste, axis=1)[:, :6]
    events = {"user_id": np.repeat(np.arange(N_USERS), 6), "item_id": items.ravel(), "time": np.arange(6 * N_USERS)}
    people = pa.table({"user_id": np.arange(N_USERS), "group": np.where(is_few, "few", "many")})
    return pa.table(events), people


EVENTS, PEOPLE = stream()
FIRST, SECOND, THIRD = EVENTS.slice(0, 9000), EVENTS.slice(9000, 3000), EVENTS.slice(12_000)


def fitted(model: str = "recent-popularity", **options: Any) -> fs.FairRecommender:
    return fs.FairRecommender(model, device="cpu", **options).fit(FIRST, users=PEOPLE, group="group")


def test_the_default_serves_the_group_that_could_have_more() -> None:
    rec = fitted(target=fs.LeastRegret(max_group_loss=0.1))
    assert rec.state.level == NO_LEVEL
    before = rec.evaluate(THIRD, users=PEOPLE)["ndcg@20"]
    rec.update(SECOND, users=PEOPLE)
    assert rec.state.level.group == "few"
    assert rec.last_update is not None
    assert rec.last_update.level == rec.state.level
    assert rec.last_update.decision is not None
    assert rec.last_update.decision.sentence in rec.notes
    after = rec.evaluate(THIRD, users=PEOPLE)["ndcg@20"]
    plain = fitted(target=None).update(SECOND, users=PEOPLE).evaluate(THIRD, users=PEOPLE)["ndcg@20"]
    assert after.by_group["few"] > 1.05 * plain.by_group["few"]
    assert after.regret["few"].value < before.regret["few"].value


def test_the_level_that_is_served_is_the_one_that_was_replayed() -> None:
    """What `evaluate` measures at a level is what serving at that level gives."""
    rec = fitted()
    evaluation = rec.evaluate(SECOND, users=PEOPLE)
    levels = evaluation.tested.levels
    assert evaluation.tested.level_values is not None
    for level in (levels[0], levels[5], levels[-1]):
        served = at_level(fitted(), level).evaluate(SECOND, users=PEOPLE).values["ndcg@20"]
        np.testing.assert_allclose(served, evaluation.tested.level_values[:, levels.index(level)], atol=1e-6)


@pytest.mark.parametrize("model", ["item-item", "recent-popularity", "blend"])
def test_a_level_reaches_newcomers_and_does_not_depend_on_who_asks(model: str) -> None:
    rec = make_recommender(model, device="cpu", embedding_dim=8, pretrain_epochs=1, update_epochs=1)
    rec.fit(fs.read_events(FIRST, users=PEOPLE, group="group"))
    before = rec.recommend([10**9], k=20)["item_id"].to_pylist()
    at_level(rec, Level("few", 1000.0))
    few, many = (rec.recommend([name], k=20)["item_id"].to_pylist() for name in (10**9 + 1, 10**9 + 2))
    assert few == many != before


def test_without_groups_the_default_target_does_nothing() -> None:
    rec = fs.FairRecommender("popularity", device="cpu").fit(FIRST)
    assert rec.update(SECOND, users=PEOPLE).state.level == NO_LEVEL
    assert rec.regret() == {}


def test_a_level_is_saved_and_the_next_decision_continues(tmp_path: Path) -> None:
    rec = fitted(target=fs.LeastRegret(max_group_loss=0.1)).update(SECOND, users=PEOPLE)
    rec.save(tmp_path)
    again = fs.load(tmp_path)
    assert again.recipe.target == rec.recipe.target
    assert again.state.level == rec.state.level != NO_LEVEL
    assert again.recommend([1, 10**9], k=20) == rec.recommend([1, 10**9], k=20)
    assert again.regret() == rec.regret()
    for one in (rec, again):
        one.update(THIRD, users=PEOPLE)
    assert again.state.replays == rec.state.replays
    assert again.notes == rec.notes


def test_a_forgotten_user_leaves_no_trace_in_the_level() -> None:
    gone = PEOPLE["user_id"].to_pylist()[120:350:3]  # the first events stay, so the items keep their rows and lots
    rec = at_level(fitted(), Level("few", 5.0))
    rec.forget(gone)
    rest = FIRST.filter(pa.array(~np.isin(FIRST["user_id"], gone)))
    fresh = fs.FairRecommender("recent-popularity", device="cpu").fit(rest, users=PEOPLE, group="group")
    at_level(fresh, Level("few", 5.0))
    assert rec.state.tilt is not None
    np.testing.assert_allclose(rec.state.tilt, fresh.state.tilt, atol=1e-6)
    assert rec.recommend([10**9]) == fresh.recommend([10**9])


def test_the_sums_of_past_periods_survive_forgetting() -> None:
    rec = fitted().update(SECOND, users=PEOPLE)
    before = rec.state.replays
    rec.forget(PEOPLE["user_id"].to_pylist()[:100])
    assert rec.state.replays == before
    rec.update(THIRD, users=PEOPLE)


def test_dropping_the_target_drops_the_level(tmp_path: Path) -> None:
    rec = fitted(target=fs.LeastRegret(max_group_loss=0.1)).update(SECOND, users=PEOPLE)
    assert rec.state.level != NO_LEVEL
    rec.save(tmp_path)
    plain = fs.load(tmp_path, target=None).update(THIRD, users=PEOPLE)
    assert plain.state.level == NO_LEVEL
    assert plain.state.tilt is None


def test_a_group_that_comes_later_or_vanishes_loses_nothing() -> None:
    third = pa.table({"user_id": np.arange(N_USERS, N_USERS + 40), "group": ["new"] * 40})
    newcomers = pa.table(
        {
            "user_id": np.repeat(np.arange(N_USERS, N_USERS + 40), 5),
            "item_id": np.tile(np.arange(5), 40),
            "time": np.arange(200) + 10**6,
        }
    )
    rec = fitted().update(SECOND, users=PEOPLE)
    rec.update(newcomers, users=third)  # nobody of the other groups is tested
    rec.update(THIRD, users=PEOPLE)
    assert set(rec.state.groups.names) == {"few", "many", "new"}


def test_the_blend_replays_the_last_events_of_its_fit() -> None:
    rec = fs.FairRecommender(device="cpu", training=fs.Training(pretrain_epochs=1))
    rec.fit(EVENTS, users=PEOPLE, group="group")
    assert len(rec.state.replays["periods"]) == 1
    assert set(rec.regret()) == {"few", "many"}
    assert rec.last_update is not None
    assert rec.last_update.decision is not None


@pytest.mark.parametrize("task", ["event", "next"])
def test_a_gap_is_held_or_called_unreachable(task: Any) -> None:
    for gap, is_met in ((0.9, True), (1e-9, False)):
        rec = fitted(target=fs.MaxGap(gap, task=task)).update(SECOND, users=PEOPLE)
        assert rec.last_update is not None
        assert rec.last_update.decision is not None
        if is_met:
            assert rec.last_update.decision.is_met
            assert rec.state.level == NO_LEVEL
        else:
            assert rec.last_update.decision.is_met in (False, True)
            assert "0.9" not in rec.last_update.decision.sentence


def test_an_audience_gets_what_is_popular_among_its_like() -> None:
    rec, level = fitted("item-item"), at_level(fitted("item-item"), Level("few", 4.0))
    few = PEOPLE.filter(pa.array(np.array(PEOPLE["group"]) == "few"))["user_id"]

    def favourites(one: fs.FairRecommender, **options: Any) -> float:
        """The mean score of what few like, as a share of what others like."""
        lists = one.recommend([10**9], k=N_ITEMS, **options)
        is_theirs, scores = lists["item_id"].to_numpy() >= 52, lists["score"].to_numpy()
        return float(scores[is_theirs].mean() / scores[~is_theirs].mean())

    assert favourites(rec, audience=few) > 1.2 * favourites(rec)
    assert favourites(rec, audience=few) == pytest.approx(
        favourites(level), rel=0.1
    )  # but for rounded numbers of users
    assert favourites(level, audience=few) > favourites(level)  # the level stays in force
    assert rec.recommend([10**9], k=8, audience=[]) == rec.recommend([10**9], k=8)
    assert rec.recommend([1], k=8, audience=few) == rec.recommend([1], k=8)  # item-item reads no popularity
