"""Models that are computed from the events: each event counts once, a group that is behind more often."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from torch import Tensor

import fairstream
from fairstream import FairRecommender, Period, Plan, Strategy, read_events, synthetic_stream
from fairstream.data import History
from fairstream.errors import ConfigurationError
from fairstream.models import ItemItemScorer, ModelFactory, PopularityScorer, TransitionsScorer
from fairstream.recommender.jobs import MIN_USERS_OF_AN_ITEM
from fairstream.testing import check_model
from support import make_recommender

STREAM = synthetic_stream(n_users=60, n_items=30, n_events=1200, seed=3)
EVENTS, USERS = STREAM.events, STREAM.users
FIRST, LATER, LAST = EVENTS.slice(0, 700), EVENTS.slice(700, 300), EVENTS.slice(1000)
MODELS = pytest.mark.parametrize("model", ["popularity", "recent-popularity", "item-item", "transitions"])


def fitted(
    model: str | ModelFactory, events: pa.Table = FIRST, *, advantaged: str = "majority", **options: Any
) -> FairRecommender:
    log = read_events(events, users=USERS, group="community", advantaged=advantaged)
    return make_recommender(model, device="cpu", **options).fit(log)


def tensors(rec: FairRecommender) -> dict[str, Tensor]:
    return rec.model.state_dict()


def assert_close(one: FairRecommender, other: FairRecommender) -> None:
    ours, theirs = tensors(one), tensors(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-6)


def without(events: pa.Table, users: list[int]) -> pa.Table:
    return events.filter(pc.invert(pc.is_in(events["user_id"], pa.array(users))))


@MODELS
@pytest.mark.parametrize("strategy", ["fine-tune", "window", "replay", "retrain"])
def test_every_event_counts_once_whatever_the_strategy(model: str, strategy: str) -> None:
    rec = fitted(model, strategy=strategy).update(LATER, users=USERS).update(LAST, users=USERS)
    assert_close(rec, fitted(model, EVENTS))
    assert len(rec.state.unlearned) == 0


class LastPeriod(Strategy):
    """Compute the model anew from the last period alone."""

    def plan(self, period: Period) -> Plan:
        return Plan(start="fresh", events=period.last(1))


def test_a_plan_from_scratch_learns_its_events_and_no_others() -> None:
    rec = fitted("popularity", strategy=LastPeriod()).update(LATER, users=USERS)
    assert int(tensors(rec)["popularity"].sum()) == len(LATER)
    assert rec.state.unlearned.tolist() == list(range(len(FIRST)))


@MODELS
def test_who_is_forgotten_might_never_have_been_there(model: str, tmp_path: Path) -> None:
    gone = EVENTS["user_id"].slice(0, 1).to_pylist() + LATER["user_id"].slice(5, 1).to_pylist()
    rec = fitted(model).update(LATER, users=USERS)
    ids = rec.state.item_ids.ids
    rec.save(tmp_path)
    for one in (rec, fairstream.load(tmp_path)):
        one.forget(gone)
        never = fitted(model, without(pa.concat_tables([FIRST, LATER]), gone))
        places = never.state.item_ids.lookup(ids)  # in the rows of the one that forgot
        known = places >= 0
        for name, value in tensors(one).items():
            expected = tensors(never)[name]
            if name != "rows":
                ours = value[known][:, known] if value.dim() == 2 else value[known]
                order = torch.from_numpy(places[known])
                theirs = expected[order][:, order] if value.dim() == 2 else expected[order]
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
                assert not value[~torch.from_numpy(known)].any()
        one.update(without(LAST, gone), users=USERS)
    assert set(rec.recommend(gone)["source"].to_pylist()) <= {
        "popularity" if model in ("item-item", "transitions") else "model"
    }


@MODELS
def test_what_is_not_retained_might_never_have_been_there(model: str) -> None:
    rec = fitted(model).update(LATER, users=USERS)
    rec.retain(LATER)
    ids, never = rec.state.item_ids.ids, fitted(model, LATER)
    places = never.state.item_ids.lookup(ids)
    known, order = places >= 0, torch.from_numpy(places[places >= 0])
    for name, value in tensors(rec).items():
        if name != "rows":
            ours = value[known][:, known] if value.dim() == 2 else value[known]
            theirs = tensors(never)[name]
            torch.testing.assert_close(ours, theirs[order][:, order] if value.dim() == 2 else theirs[order])


@MODELS
@pytest.mark.parametrize("learn_later", [True, False])
def test_observed_events_are_learned_later_or_never(model: str, learn_later: bool, tmp_path: Path) -> None:
    rec = fitted(model)
    before = {name: value.clone() for name, value in tensors(rec).items()}
    rec.observe(LATER, users=USERS, learn_later=learn_later)
    for name, value in tensors(rec).items():
        old = before[name]
        assert torch.equal(value[tuple(map(slice, old.shape))], old)
    rec.save(tmp_path)
    loaded = fairstream.load(tmp_path)
    for one in (rec, loaded):
        one.update(LAST, users=USERS)
        if learn_later:
            assert_close(one, fitted(model, EVENTS))
            assert len(one.state.unlearned) == 0
        else:
            assert one.state.unlearned.tolist() == list(range(len(FIRST), len(FIRST) + len(LATER)))
    if model == "item-item":  # of a user with observed events nothing may be taken off that was never added
        assert float(tensors(rec)["counts"].min()) >= 0
        x = np.zeros((rec.state.history.n_users, rec.model.n_items))
        learned = np.delete(np.arange(len(EVENTS)), rec.state.unlearned)
        history = rec.state.history
        x[history.users[learned], history.items[learned]] = 1
        n = np.maximum(1, x.sum(axis=1, keepdims=True))
        np.testing.assert_allclose(tensors(rec)["counts"].numpy(), x.T @ (x / np.sqrt(n)), atol=1e-9)


def test_newcomers_are_served_from_their_first_event_on() -> None:
    rec = fitted("item-item")
    item = FIRST["item_id"][0].as_py()
    assert set(rec.recommend([10_000], k=5)["source"].to_pylist()) == {"popularity"}
    rec.observe(pa.table({"user_id": [10_000], "item_id": [item], "time": [99.0]}).cast(FIRST.schema))
    lists = rec.recommend([10_000], k=5)
    assert set(lists["source"].to_pylist()) == {"model"}
    assert item not in lists["item_id"].to_pylist()


# ── weights of groups ────────────────────────────────────────────────────────────────────


def counts_of(events: pa.Table, rec: FairRecommender, weight: float, behind: str) -> list[float]:
    """What the items' events count; those of users with an item that few users have had count once."""
    groups = dict(zip(USERS["user_id"].to_pylist(), USERS["community"].to_pylist(), strict=True))
    pairs = list(zip(events["user_id"].to_pylist(), events["item_id"].to_pylist(), strict=True))
    n_users = Counter(item for _, item in pairs)
    identifiable = {user for user, item in pairs if n_users[item] < MIN_USERS_OF_AN_ITEM}
    assert any(groups[user] == behind for user in {user for user, _ in pairs} - identifiable)
    counts = dict.fromkeys(rec.state.item_ids.ids.to_pylist(), 0.0)
    for user, item in pairs:
        counts[item] += weight if groups[user] == behind and user not in identifiable else 1.0
    return list(counts.values())


@pytest.mark.parametrize(("advantaged", "behind"), [("majority", "minority"), ("minority", "majority")])
def test_events_of_a_group_that_is_behind_count_more(advantaged: str, behind: str) -> None:
    rec = fitted(PopularityScorer, advantaged=advantaged, group_weight=2.5)
    assert tensors(rec)["popularity"].tolist() == counts_of(FIRST, rec, 2.5, behind)
    rec.update(LATER, users=USERS)
    known = pa.concat_tables([FIRST, LATER])
    assert tensors(rec)["popularity"].tolist() == counts_of(known, rec, 2.5, behind)


@pytest.mark.parametrize("model", [PopularityScorer, ItemItemScorer, TransitionsScorer])
def test_weighted_updates_are_exact_and_survive_a_checkpoint(model: ModelFactory, tmp_path: Path) -> None:
    rec = fitted(model, group_weight=3.0)
    rec.save(tmp_path)
    loaded = fairstream.load(tmp_path, model=model)
    for one in (rec, loaded):
        one.update(LATER, users=USERS).update(LAST, users=USERS)
    assert_close(rec, fitted(model, EVENTS, group_weight=3.0))
    assert_close(loaded, rec)
    plain = fitted(model, EVENTS)
    assert any(not torch.allclose(value, tensors(plain)[name]) for name, value in tensors(rec).items())
    with pytest.raises(ConfigurationError, match="the group weight of a checkpoint cannot change"):
        fairstream.load(tmp_path, model=model, fairness=None)


def test_users_whose_group_is_not_known_count_once() -> None:
    rec = fitted(PopularityScorer, group_weight=4.0)
    stranger = pa.table({"user_id": [10_000], "item_id": FIRST["item_id"][:1], "time": [99.0]}).cast(FIRST.schema)
    before = tensors(rec)["popularity"].clone()
    rec.update(stranger)
    assert (tensors(rec)["popularity"] - before).sum() == 1


class Unweighted(PopularityScorer):
    def learn(self, history: History, new: Any) -> None:  # type: ignore[override]
        super().learn(history, new)


def test_a_model_of_ones_own_need_not_know_weights_unless_there_are_any() -> None:
    assert_close(fitted(Unweighted), fitted("popularity"))
    with pytest.raises(ConfigurationError, match="learn takes weights, and that of Unweighted does not; add"):
        fitted(Unweighted, group_weight=2.0)


def test_a_catalogue_too_large_for_the_model_is_noted() -> None:
    rec = fitted(partial(ItemItemScorer, max_items=20), fairness_weight=0)
    n_items = rec.model.n_items
    assert rec.notes == (f"item-item knows the 20 most popular of {n_items} items; all others score 0",)
    rec.update(LATER, users=USERS)
    assert rec.last_update is not None
    assert rec.last_update.notes == rec.notes
    assert fitted("item-item", fairness_weight=0).notes == ()


def test_a_catalogue_too_large_for_the_model_passes_all_checks() -> None:
    check_model(partial(ItemItemScorer, max_items=10))
