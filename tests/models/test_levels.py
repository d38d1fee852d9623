"""Levels: how much one group's events count in popularity, and what no level may reveal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.data import Groups, History
from fairstream.evaluation.requests import Requests
from fairstream.evaluation.top_k import top_k_at_levels, top_k_of_all
from fairstream.models import NO_LEVEL, BlendScorer, Context, ContextBuilder, Level, PopularityScorer, levels_of, tilts
from fairstream.models.levels import ALONE, LADDER, MIN_USERS

N_USERS, N_ITEMS = 4000, 9


def world(seed: int, n_groups: int = 2) -> tuple[History, Groups]:
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(N_USERS), 4)
    codes = rng.integers(0, n_groups, N_USERS)
    items = (rng.integers(0, 6, len(users)) + 3 * codes[users]) % N_ITEMS
    return History.of(users, items), Groups.from_values("group", [f"g{c}" for c in codes], advantaged="g0")


def test_no_level_changes_nothing() -> None:
    assert not tilts(*world(0), [NO_LEVEL, Level("g1", 1.0), Level("absent", 5.0)]).any()


def test_every_group_can_be_raised() -> None:
    levels = levels_of(["a", "b", "c"], (2.0,))
    assert levels[0] == NO_LEVEL
    assert {level.group for level in levels[1:]} == {"a", "b", "c"}
    assert levels[1:3] == (Level("a", 2.0), Level("a", ALONE))


@given(st.integers(0, 50), st.sampled_from(LADDER))
def test_a_level_raises_the_items_that_its_group_prefers(seed: int, weight: float) -> None:
    history, groups = world(seed)
    tilt = tilts(history, groups, [Level("g1", weight)])[0]
    own = np.bincount(history.items, groups.codes[history.users] == 1, minlength=N_ITEMS)
    share = own / np.maximum(1, np.bincount(history.items, minlength=N_ITEMS))
    overall = own.sum() / len(history)
    assert (tilt[share > overall + 0.25] >= 0).all()
    assert (tilt[share < overall - 0.25] <= 0).all()


def test_of_two_groups_raising_one_is_lowering_the_other() -> None:
    history, groups = world(1)
    one, other = (tilts(history, groups, [Level("g1", 4.0)])[0], tilts(history, groups, [Level("g0", 0.25)])[0])
    np.testing.assert_allclose(one, other, atol=0.05)  # each group's users are rounded by lots of their own


def test_a_repeated_event_counts_once() -> None:
    history, groups = world(2)
    again = history.after(np.full(50, 0), np.full(50, history.items[0]))
    one, other = (tilts(part, groups, [Level("g1", 5.0)])[0] for part in (history, again))
    # Only the ages of the other events change with the number of events.
    np.testing.assert_allclose(one, other, atol=0.05)


@pytest.mark.parametrize("n_own", [1, MIN_USERS - 1])
def test_an_item_with_few_users_has_no_tilt_whoever_they_are(n_own: int) -> None:
    history, groups = world(3)
    probe = history.after(np.arange(n_own), np.full(n_own, N_ITEMS))  # an item of their own
    swapped = Groups("group", groups.names, np.where(np.arange(N_USERS) < n_own, 1 - groups.codes, groups.codes))
    for each in (groups, swapped):
        assert (tilts(probe, each, levels_of(groups.names))[:, N_ITEMS] == 0).all()


def test_users_without_a_group_count_as_average() -> None:
    history, groups = world(4)
    hidden = groups.hide(np.arange(0, N_USERS, 2))
    one, other = (tilts(history, each, [Level("g1", 5.0)])[0] for each in (groups, hidden))
    assert np.corrcoef(one, other)[0, 1] > 0.9


@pytest.mark.few(1)
def test_one_user_seldom_changes_the_tilt_of_an_item() -> None:
    """Accomplices of known groups and one victim have had an item; the lot hides the victim's group in most cases."""
    history, groups = world(8)
    n, n_probes = 24, 200  # users of each probe; the last one is the victim
    users = np.concatenate([np.arange(n * p, n * p + n) % N_USERS for p in range(n_probes)])
    probes = history.after(users, np.repeat(N_ITEMS + np.arange(n_probes), n))
    victims = users.reshape(n_probes, n)[:, -1]
    swapped = groups.codes.copy()
    swapped[victims] = 1 - swapped[victims]
    one, other = (
        tilts(probes, Groups("group", groups.names, codes), [Level("g1", 5.0)])[0, N_ITEMS:]
        for codes in (groups.codes, swapped)
    )
    assert 0.0 < np.mean(np.abs(one - other) > 0.02) < 0.3


# ── lists at levels ──────────────────────────────────────────────────────────────────────


def popular(history: History) -> PopularityScorer:
    model = PopularityScorer(N_USERS, N_ITEMS)
    model.learn(history, range(len(history)))
    return model


@pytest.mark.parametrize("served", [None, 3])
def test_levels_in_one_pass_are_those_of_one_list_each(served: int | None) -> None:
    history, groups = world(5)
    levels = levels_of(groups.names, (2.0, 8.0))
    each = tilts(history, groups, levels)
    contexts = ContextBuilder(0, history, tilt=None if served is None else each[served])
    rng = np.random.default_rng(0)
    requests = Requests.of_period(rng.integers(0, N_USERS, 300), rng.integers(0, N_ITEMS, 300), history, contexts)
    model = popular(history)
    lists, hits = top_k_at_levels(model, requests, each, n_items=N_ITEMS, k=4)
    alone = top_k_of_all(model, requests, n_items=N_ITEMS, k=4)
    np.testing.assert_array_equal(lists.items, alone.items)
    np.testing.assert_array_equal(lists.hits, alone.hits)
    for tilt, at_level in zip(each, hits, strict=True):
        one = Requests(requests.users, requests.positives, history, ContextBuilder(0, history, tilt=tilt))
        np.testing.assert_array_equal(top_k_of_all(model, one, n_items=N_ITEMS, k=4).hits, at_level)
    assert any((at_level != hits[0]).any() for at_level in hits[1:])  # else the test proves nothing


def test_popularity_is_multiplied_and_the_blend_adds_in_proportion_to_its_weights() -> None:
    history, groups = world(6)
    tilt = torch.from_numpy(tilts(history, groups, [Level("g1", 5.0)])[0])
    model = popular(history)
    scores = model.score_range(torch.tensor([0]), 0, N_ITEMS)
    torch.testing.assert_close(model.tilted(scores, tilt), scores * tilt.double().exp())
    blend = BlendScorer(N_USERS, N_ITEMS)
    context = Context(n_events=torch.tensor([0, 30]), task="next")
    shifts = blend.tilted(torch.zeros(2, N_ITEMS), tilt, context)
    weights = blend.weights[1][[0, -1], -len(blend.popular) :].sum(
        dim=1
    )  # of the popularity parts, of newcomers and long histories
    torch.testing.assert_close(shifts, weights[:, None] * tilt)


def test_items_that_came_after_the_level_keep_their_popularity() -> None:
    history, groups = world(7)
    later = history.after(np.arange(300), np.full(300, N_ITEMS), ends_period=False)
    tilt = tilts(history, groups, [Level("g1", 5.0)])[0]
    model = PopularityScorer(N_USERS, N_ITEMS + 1)
    model.learn(later, range(len(later)))
    contexts = ContextBuilder(0, later, tilt=tilt)
    requests = Requests.of_period(np.array([N_USERS - 1]), np.array([0]), later, contexts)
    lists = top_k_of_all(model, requests, n_items=N_ITEMS + 1, k=N_ITEMS)
    assert lists.scores[lists.items == N_ITEMS].tolist() == [300.0]
