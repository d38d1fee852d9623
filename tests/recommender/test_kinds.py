"""Kinds of events: what a purchase counts next to a view, in learning and in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fairstream import FairRecommender, load, read_events
from fairstream.data import History
from fairstream.errors import ConfigurationError, DataError
from fairstream.sampling import NegativeSampler
from fairstream.training import Training, cut_windows

TELLING, EQUAL = {"view": 0.1, "purchase": 1.0}, {"view": 1.0, "purchase": 1.0}
N_USERS, N_TASTES, N_ITEMS = 240, 6, 20


def shop(seed: int = 0) -> tuple[pa.Table, pa.Table]:
    """Users buy what they like, and look at anything: events, and the purchases that follow."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(N_USERS):
        own = (user % N_TASTES) * N_ITEMS + rng.permutation(N_ITEMS)[:8]
        views = rng.choice(N_TASTES * N_ITEMS, 30, replace=False)
        order = rng.permutation([*((item, "purchase") for item in own[:6]), *((item, "view") for item in views)])
        rows += [(user, int(item), n + rng.random(), kind) for n, (item, kind) in enumerate(order)]
        rows += [(user, int(item), 1000 + rng.random(), "purchase") for item in own[6:]]
    columns = dict(zip(("user", "item", "time", "kind"), map(list, zip(*rows, strict=True)), strict=True))
    events = pa.table(columns).sort_by("time")
    is_later = np.array(events["time"]) > 999
    return events.filter(pa.array(~is_later)), events.filter(pa.array(is_later))


@pytest.mark.parametrize(("model", "factor"), [("item-item", 1.8), ("blend", 1.8), ("transitions", 1.05)])
def test_purchases_tell_more_than_noisy_views_if_they_weigh_more(model: str, factor: float) -> None:
    events, later = shop()
    quality = []
    for kinds in (EQUAL, TELLING):
        recommender = FairRecommender(model, training=Training(pretrain_epochs=2)).fit(read_events(events, kinds=kinds))
        quality.append(recommender.evaluate(later, n_resamples=0).metrics["ndcg@20"].mean)
    assert quality[1] > factor * quality[0], quality


def table(*rows: tuple[str, str, int, str]) -> pa.Table:
    return pa.table(dict(zip(("user", "item", "time", "kind"), map(list, zip(*rows, strict=True)), strict=True)))


FIRST = table(
    ("ann", "tea", 1, "view"),
    ("ann", "jam", 2, "view"),
    ("bob", "jam", 3, "purchase"),
    ("bob", "tea", 4, "view"),
    ("cid", "oil", 5, "view"),
    ("ann", "jam", 6, "purchase"),
    ("cid", "rye", 7, "dislike"),
    ("cid", "fig", 8, "seen"),
)
KINDS = {"view": 0.5, "purchase": 4.0, "dislike": -1.0, "seen": 0}


def weights_of(recommender: FairRecommender) -> dict[tuple[str, str], float]:
    state = recommender.state
    users, items = state.user_ids.ids.to_pylist(), state.item_ids.ids.to_pylist()
    every = range(len(state.history))
    weights = state.history.weights_at(every)
    assert weights is not None
    pairs = zip(state.history.users.tolist(), state.history.items.tolist(), weights.tolist(), strict=True)
    return {(users[user], items[item]): weight for user, item, weight in pairs}


def test_a_pair_counts_as_its_strongest_kind_and_negative_ones_not_at_all() -> None:
    log = read_events(FIRST, kinds=KINDS)
    recommender = FairRecommender("popularity").fit(log)
    expected = {("ann", "tea"): 0.5, ("ann", "jam"): 4.0, ("bob", "jam"): 4.0, ("bob", "tea"): 0.5, ("cid", "oil"): 0.5}
    assert weights_of(recommender) == expected
    popularity = dict(
        zip(recommender.state.item_ids.ids.to_pylist(), recommender.model.popularity.tolist(), strict=True)
    )
    assert popularity == {"tea": 1.0, "jam": 8.0, "oil": 0.5}


def test_a_view_that_becomes_a_purchase_in_a_later_update_counts_as_one() -> None:
    recommender = FairRecommender("popularity").fit(read_events(FIRST, kinds=KINDS))
    recommender.update(table(("bob", "tea", 9, "purchase"), ("cid", "tea", 10, "view"), ("ann", "jam", 11, "view")))
    assert weights_of(recommender)["bob", "tea"] == 4.0
    assert weights_of(recommender)["ann", "jam"] == 4.0
    popularity = dict(
        zip(recommender.state.item_ids.ids.to_pylist(), recommender.model.popularity.tolist(), strict=True)
    )
    assert popularity == {"tea": 5.0, "jam": 8.0, "oil": 0.5}


@pytest.mark.parametrize("model", ["popularity", "recent-popularity", "item-item", "transitions"])
def test_an_update_of_weighted_events_equals_a_fit_on_all_of_them(model: str) -> None:
    events, later = shop()
    updated = FairRecommender(model, training=Training()).fit(read_events(events, kinds=TELLING)).update(later)
    fitted = FairRecommender(model, training=Training()).fit(
        read_events(pa.concat_tables([events, later]), kinds=TELLING)
    )
    for (name, one), (_, other) in zip(updated.model.named_buffers(), fitted.model.named_buffers(), strict=True):
        assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("model", ["recent-popularity", "item-item", "transitions", "sasrec"])
def test_weights_of_one_change_nothing(model: str) -> None:
    events, _ = shop()
    training = Training(pretrain_epochs=1)
    with_kinds = FairRecommender(model, training=training).fit(read_events(events, kinds=EQUAL))
    without = FairRecommender(model, training=training).fit(read_events(events.drop_columns("kind")))
    for (name, one), (_, other) in zip(
        with_kinds.model.state_dict().items(), without.model.state_dict().items(), strict=True
    ):
        assert_array_equal(one.numpy(), other.numpy(), err_msg=name)


def test_the_softmax_loss_weighs_each_target_by_its_event() -> None:
    users, items = np.repeat(np.arange(4), 5), np.tile(np.arange(5), 4)
    weights = np.float32(np.tile([1, 1, 4, 1, 1], 4))
    history = History.of(users, items, weights=weights, n_items=9)
    sampler = NegativeSampler(history.pairs, users, n_items=9)
    windows = cut_windows(history, range(20), np.zeros(4, np.int16), sampler, n_drawn=1, length=3, size=8)
    for cut in (windows, windows.cut_again(3)):
        of_targets = cut.target_weights
        assert of_targets.mean() == pytest.approx(1)
        assert_allclose(of_targets / of_targets.min(), np.where(cut.positives == 2, 4, 1))


def test_evaluations_test_the_kinds_to_judge_by() -> None:
    log = read_events(FIRST, kinds=KINDS, judge_by=["purchase"])
    recommender = FairRecommender("popularity").fit(log)
    later = table(
        ("cid", "tea", 9, "view"),
        ("cid", "jam", 10, "view"),
        ("cid", "jam", 11, "purchase"),
        ("bob", "oil", 12, "view"),
    )
    for task in ("next", "event"):
        tested = recommender.evaluate(later, task=task, k=2, n_resamples=0)
        assert tested.users.to_pylist() == ["cid"]
        assert tested.metrics["recall@2"].mean == 1.0
    with pytest.raises(DataError, match="of a kind to judge by"):
        recommender.evaluate(later.slice(3))


def test_items_of_a_returning_kind_are_recommended_and_tested_again() -> None:
    log = read_events(FIRST, kinds=KINDS, returning=["view"])
    recommender = FairRecommender("popularity").fit(log)
    lists = recommender.recommend(["ann", "bob"], k=3).to_pylist()
    items = {user: {row["item_id"] for row in lists if row["user_id"] == user} for user in ("ann", "bob")}
    assert items == {"ann": {"tea", "oil"}, "bob": {"tea", "oil"}}  # tea was viewed, and jam was bought
    again = table(("ann", "tea", 9, "view"), ("ann", "tea", 10, "purchase"), ("ann", "tea", 11, "purchase"))
    tested = recommender.evaluate(again, task="event", k=2, n_resamples=0)
    assert tested.tested.n_positives.tolist() == [1, 1]
    assert tested.metrics["recall@2"].mean == 1.0  # both lists hold it, although it was viewed before them
    recommender.update(again)
    assert "tea" not in recommender.recommend("ann", k=3)["item_id"].to_pylist()


def test_a_checkpoint_keeps_what_kinds_say(tmp_path: Path) -> None:
    recommender = FairRecommender("item-item").fit(read_events(FIRST, kinds=KINDS, returning=["view"]))
    recommender.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert weights_of(again) == weights_of(recommender)
    assert again.recommend("ann", k=3).equals(recommender.recommend("ann", k=3))
    again.forget("bob")
    assert weights_of(again) == {pair: weight for pair, weight in weights_of(recommender).items() if pair[0] != "bob"}
    read_events(FIRST, kinds=KINDS).save(tmp_path / "log")
    assert weights_of(FairRecommender("popularity").fit(tmp_path / "log"))["ann", "jam"] == 4.0


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"kinds": {"view": 1.0}}, DataError, "the kind of every event must be one of view"),
        ({"kinds": {"view": "much"}}, ConfigurationError, "the weight of the kind 'view' must be a number"),
        ({"kinds": KINDS, "judge_by": ["sale"]}, ConfigurationError, "'sale' is none of the kinds view, purchase"),
        ({"kinds": KINDS, "kind_column": "what"}, DataError, "has no column 'what'"),
    ],
)
def test_kinds_that_cannot_be_read_are_one_sentence(options: dict[str, Any], kind: type, sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        read_events(FIRST, **options)
