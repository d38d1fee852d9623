"""Group weights say nothing about the group of a user whom an item of the user's own would identify."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairstream import FairRecommender
from fairstream.data import History
from fairstream.recommender.jobs import MIN_USERS_OF_AN_ITEM
from group_attack import CHANCE, ITEMS, Kind, World, advantage, numbers, reader_of, similarities

SHORT: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8}
HELD: dict[str, Any] = {"max_disparity": 0.001, "group_weight": 8.0}
WEIGHTED: list[tuple[str, dict[str, Any]]] = [
    ("item-item", {"group_weight": 3.0}),
    ("popularity", {"group_weight": 3.0}),
    ("recent-popularity", {"group_weight": 3.0}),
    ("item-item", HELD),
    ("sasrec", {"group_weight": 3.0, **SHORT}),
    ("gru", {"group_weight": 3.0, **SHORT}),
    ("gru", {**HELD, **SHORT}),
    ("blend", {"group_weight": 3.0, **SHORT}),
    ("mf", {**HELD, **SHORT}),
    ("mf", {**HELD, **SHORT, "surrogate": "log-likelihood"}),
]
NAMES = [
    f"{model}-{'held' if 'max_disparity' in options else 'fixed'}-{n}" for n, (model, options) in enumerate(WEIGHTED)
]


def found_by_attack(world: World, rec: FairRecommender) -> dict[str, float]:
    catalogue = sorted(set(world.before["item_id"].to_pylist()))
    values = numbers(reader_of(rec), world.victims, ITEMS, catalogue) | similarities(rec, ITEMS)
    return {name: advantage(each, world.is_behind) for name, each in values.items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["known", "new"])
@pytest.mark.parametrize(("model", "options"), WEIGHTED, ids=NAMES)
def test_no_number_about_an_item_of_ones_own_reveals_the_group(kind: Kind, model: str, options: dict[str, Any]) -> None:
    world = World.made(kind)
    rec = world.learned(model, **options)
    assert rec.state.event_weights["minority"] > 2  # else the test would prove nothing
    aucs = found_by_attack(world, rec)
    assert {name: auc for name, auc in aucs.items() if auc > CHANCE} == {}


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["item-item", "popularity", "recent-popularity", "sasrec", "gru", "blend"])
def test_weights_do_the_same_whichever_group_an_identifiable_user_is_in(model: str) -> None:
    options = SHORT if model in ("sasrec", "gru", "blend") else {}
    world = World.made("new")
    one, other = (each.learned(model, group_weight=3.0, **options) for each in (world, world.swapped()))
    for ours, theirs in zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    plain = world.learned(model, **options).model.state_dict().values()
    assert not all(map(torch.equal, one.model.state_dict().values(), plain))  # the others have their weights


def test_what_newcomers_get_has_no_weights() -> None:
    world = World.made("known")
    rec = world.learned("item-item", group_weight=8.0)
    np.testing.assert_array_equal(rec.state.fallback.popularity.numpy(), rec.state.history.recent_popularity)


def test_an_item_is_rare_until_enough_users_of_known_groups_have_had_it() -> None:
    n = MIN_USERS_OF_AN_ITEM
    users = np.arange(2 * n)
    items = np.repeat([0, 1], n)
    is_known = np.ones(2 * n, np.bool_)
    is_known[-1] = False  # strangers do not make an item common
    assert History.of(users, items).users_with_rare_items(is_known, n).tolist() == list(range(n, 2 * n))
    assert History.of(users, items).users_with_rare_items(np.ones_like(is_known), n).tolist() == []
