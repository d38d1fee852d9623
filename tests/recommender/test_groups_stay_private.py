"""Group weights and levels say nothing about the group of a user whom an item of the user's own would identify."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fairstream import FairRecommender
from fairstream.data import Groups, History
from fairstream.models import NO_LEVEL, Level, tilts
from fairstream.models.levels import GRAIN
from fairstream.recommender.jobs import MIN_USERS_OF_AN_ITEM
from group_attack import CHANCE, ITEMS, Kind, World, advantage, at_level, numbers, reader_of, similarities

SHORT: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8}
WEIGHTED: list[tuple[str, dict[str, Any]]] = [
    ("item-item", {"group_weight": 3.0}),
    ("popularity", {"group_weight": 3.0}),
    ("recent-popularity", {"group_weight": 3.0}),
    ("sasrec", {"group_weight": 3.0, **SHORT}),
    ("gru", {"group_weight": 3.0, **SHORT}),
    ("blend", {"group_weight": 3.0, **SHORT}),
]
MODELS = ["popularity", "recent-popularity", "item-item", "transitions", "mf", "sasrec", "gru", "blend"]
TARGETS: dict[str, dict[str, Any]] = {"least-regret": {"target": "least-regret"}, "max-gap": {"max_gap": 0.001}}
LEVEL = Level("minority", 50.0)


def found_by_attack(world: World, rec: FairRecommender) -> dict[str, float]:
    catalogue = sorted(set(world.before["item_id"].to_pylist()))
    values = numbers(reader_of(rec), world.victims, ITEMS, catalogue) | similarities(rec, ITEMS)
    return {name: advantage(each, world.is_behind) for name, each in values.items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["known", "new"])
@pytest.mark.parametrize(("model", "options"), WEIGHTED, ids=[model for model, _ in WEIGHTED])
def test_no_number_about_an_item_of_ones_own_reveals_the_group(kind: Kind, model: str, options: dict[str, Any]) -> None:
    world = World.made(kind)
    rec = world.learned(model, **options)
    assert rec.state.event_weights["minority"] > 2  # else the test would prove nothing
    aucs = found_by_attack(world, rec)
    assert {name: auc for name, auc in aucs.items() if auc > CHANCE} == {}


def with_a_target(world: World, model: str, target: str) -> FairRecommender:
    """A recommender that steers to a target, with a strong level in force."""
    options = SHORT if model in ("mf", "sasrec", "gru", "blend") else {}
    rec = at_level(world.learned(model, method="Finetune", **TARGETS[target], **options), LEVEL)
    assert rec.recipe.target is not None
    assert np.abs(rec.state.tilt).max() > 0.1  # else the test would prove nothing
    return rec


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["known", "new"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", MODELS)
def test_a_level_says_nothing_about_who_has_an_item_of_ones_own(model: str, target: str, kind: Kind) -> None:
    world = World.made(kind)
    rec = with_a_target(world, model, target)
    assert not rec.state.tilt[rec.state.item_ids.lookup(pa.array(ITEMS))].any()
    aucs = found_by_attack(world, rec)
    assert {name: auc for name, auc in aucs.items() if auc > CHANCE} == {}


def test_a_target_that_really_chose_a_level_reveals_no_group() -> None:
    world = World.made("known")
    rec = world.learned("item-item", method="Finetune", target="least-regret")
    assert rec.state.level != NO_LEVEL
    aucs = found_by_attack(world, rec)
    assert {name: auc for name, auc in aucs.items() if auc > CHANCE} == {}


@pytest.mark.parametrize(("n_behind", "n_ahead"), [(0, 12), (12, 0), (9, 10), (14, 14), (20, 20), (10, 40)])
def test_accomplices_of_known_groups_hardly_help(n_behind: int, n_ahead: int) -> None:
    """A victim changes the rounded count in one case of five: an AUC of 0.6 at most, 1.0 if every user counted."""
    world = World.made("known").with_accomplices(n_behind, n_ahead)
    aucs = found_by_attack(world, with_a_target(world, "popularity", "least-regret"))
    assert {name: auc for name, auc in aucs.items() if auc > CHANCE} == {}


def test_one_user_changes_the_tilt_of_an_item_in_one_case_of_five() -> None:
    """Over many histories: 24 users of each group and the user in question, who has nothing else."""
    changed = []
    for seed in range(400):
        random = np.random.default_rng(seed)
        users = np.concatenate([random.permutation(49), np.arange(48)])
        items = np.concatenate([np.zeros(49, np.int64), random.integers(1, 4, 48)])
        codes = np.arange(49) % 2
        codes[48] = 0
        groups = [Groups("g", ("a", "b"), np.append(codes[:48], code).astype(np.int16)) for code in (0, 1)]
        one, other = (tilts(History.of(users, items), each, [Level("b", 5.0)])[0][0] for each in groups)
        changed.append(one != other)
    assert 0 < np.mean(changed) <= 1 / GRAIN + 0.06


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "model", ["item-item", "transitions", "popularity", "recent-popularity", "sasrec", "gru", "blend"]
)
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
