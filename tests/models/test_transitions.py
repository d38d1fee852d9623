"""Transitions against a plain count of what follows what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.data import History
from fairstream.models import ClosedFormScorer, ContextBuilder, ItemItemScorer, TransitionsScorer
from fairstream.testing import check_model

N_USERS, N_ITEMS = 5, 8
EVENTS = st.lists(st.tuples(st.integers(0, N_USERS - 1), st.integers(0, N_ITEMS - 1)), min_size=1, max_size=40)
Array = np.ndarray[Any, Any]


def history_of(events: list[tuple[int, int]]) -> History:
    users, items = np.array(events, dtype=np.int64).reshape(-1, 2).T
    return History.of(users, items, n_users=N_USERS, n_items=N_ITEMS)


def learned(history: History, *, weights: Array | None = None, **options: Any) -> TransitionsScorer:
    model = TransitionsScorer(history.n_users, history.n_items, **options)
    model.learn(history, range(len(history)), weights)
    return model


def scores_of(model: ClosedFormScorer, history: History) -> Array:
    rows = np.arange(history.n_users)
    context = ContextBuilder(model.history_length, history).at(rows)
    return model.score_range(torch.from_numpy(rows), 0, history.n_items, context).double().numpy()


def plain_transitions(
    history: History, *, decay: float, length: int, smoothing: float, weights: Array, kept: Array
) -> Array:
    """(n_users, n_items) scores by the definition."""
    counts, sequences = np.zeros((N_ITEMS, N_ITEMS)), [history.items[history.users == user] for user in range(N_USERS)]
    for user, items in enumerate(sequences):
        for at, item in enumerate(items):
            for d, earlier in enumerate(items[:at][::-1][:length]):
                counts[earlier, item] += weights[user] * np.exp(-d / decay)
    counts *= np.outer(kept, kept)
    totals = counts.sum(axis=1, keepdims=True)
    chances, scores = counts / (totals + smoothing), np.zeros((N_USERS, N_ITEMS))
    for user, items in enumerate(sequences):
        for d, item in enumerate(items[::-1][:length]):
            scores[user] += np.exp(-d / decay) * chances[item]
    return scores


@given(
    events=EVENTS,
    decay=st.sampled_from([0.3, 3.0]),
    length=st.sampled_from([1, 3, 50]),
    weights=st.lists(st.floats(0.5, 4), min_size=N_USERS, max_size=N_USERS),
    max_items=st.sampled_from([3, 100]),
)
def test_scores_are_those_of_a_plain_count(
    events: list[tuple[int, int]], decay: float, length: int, weights: list[float], max_items: int
) -> None:
    history, options = history_of(events), {"decay": decay, "length": length, "smoothing": 0.7}
    model = learned(history, weights=np.array(weights), max_items=max_items, **options)
    kept = np.isin(np.arange(N_ITEMS), model.rows.numpy())
    expected = plain_transitions(history, **options, weights=np.array(weights), kept=kept)
    np.testing.assert_allclose(scores_of(model, history), expected, rtol=1e-5, atol=1e-6)


@given(events=EVENTS, parts=st.lists(st.integers(0, 2), min_size=40, max_size=40), weight=st.floats(0.5, 4))
def test_learned_in_pieces_it_is_what_it_is_at_once(
    events: list[tuple[int, int]], parts: list[int], weight: float
) -> None:
    """In any order: an update may learn events that others have passed."""
    model, weights = TransitionsScorer(N_USERS, N_ITEMS), np.linspace(1, weight, N_USERS)
    part_of = np.array(parts[: len(events)])
    for part in range(3):
        known = np.flatnonzero(part_of <= part)
        history, before = history_of([events[at] for at in known]), model.counts
        kept = before.clone()
        model.learn(history, np.flatnonzero(part_of[known] == part), weights)
        assert torch.equal(before, kept)  # an older state that shares this tensor keeps it
    at_once = learned(history, weights=weights)
    torch.testing.assert_close(model.counts, at_once.counts, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(scores_of(model, history), scores_of(at_once, history), rtol=1e-5, atol=1e-6)


def test_order_matters_here_and_not_to_item_item() -> None:
    """Each user has the items 0 to 3 in this order; the others have them in reverse."""
    forward = [(user, item) for item in range(4) for user in range(N_USERS)]
    backward = [(user, 3 - item) for user, item in forward]
    kinds: list[type[ClosedFormScorer]] = [TransitionsScorer, ItemItemScorer]
    for kind in kinds:
        models = [kind(N_USERS, N_ITEMS) for _ in range(2)]
        for model, events in zip(models, (forward, backward), strict=True):
            model.learn(history_of(events), range(len(events)))
        last = history_of([(user, 1) for user in range(N_USERS)])
        ahead, back = (scores_of(model, last)[0] for model in models)
        assert np.allclose(ahead, back) == (kind is ItemItemScorer)
        if kind is TransitionsScorer:
            assert (ahead.argmax(), back.argmax()) == (2, 0)


def test_the_latest_item_counts_most_and_items_before_the_window_nothing() -> None:
    events = [(0, 0), (0, 4), (1, 1), (1, 5), (2, 2), (2, 6)]
    model = learned(history_of(events), decay=1.0, length=2)
    scores = scores_of(model, history_of([(0, 2), (0, 1), (0, 0)]))[0]
    assert scores[4] > scores[5] > scores[6] == 0


@pytest.mark.parametrize("n_threads", [2, 3])
def test_the_number_of_threads_does_not_show_in_the_counts(n_threads: int) -> None:
    rng = np.random.default_rng(1)
    history = History.of(rng.integers(40, size=2000), rng.integers(200, size=2000))
    alone, before = learned(history).counts, torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        assert torch.equal(learned(history).counts, alone)
    finally:
        torch.set_num_threads(before)


def test_it_passes_all_checks_of_a_model() -> None:
    check_model(TransitionsScorer)
