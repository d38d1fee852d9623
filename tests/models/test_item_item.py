"""Item–item regression against a plain computation, and what holds of every model in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import History
from fairstream.models import (
    ClosedFormScorer,
    Context,
    ContextBuilder,
    ItemItemScorer,
    PopularityScorer,
    RecentPopularityScorer,
    TransitionsScorer,
)
from fairstream.models import item_item as module

N_ITEMS = 9
PAIR = st.tuples(st.integers(0, 6), st.integers(0, N_ITEMS - 1))
PAIRS = st.lists(PAIR, min_size=1, max_size=40, unique=True)
Array = np.ndarray[Any, Any]


def history_of(pairs: list[tuple[int, int]] | Array, n_items: int = N_ITEMS) -> History:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return History.of(users, items, n_users=7, n_items=n_items)


def learned(history: History, *, weights: Array | None = None, **options: Any) -> ItemItemScorer:
    model = ItemItemScorer(history.n_users, history.n_items, **options)
    model.learn(history, range(len(history)), weights)
    return model


def scores_of(model: ClosedFormScorer, history: History, users: list[int] | None = None) -> Tensor:
    rows = np.arange(history.n_users) if users is None else np.array(users)
    context = ContextBuilder(model.history_length, history).at(rows)
    return model.score_range(torch.from_numpy(rows), 0, history.n_items, context)


def plain_ease(history: History, *, ridge: float, activity: float, items: Array | None = None) -> Array:
    """(n_users, n_items) scores by the formula, with NumPy's inverse."""
    x = np.zeros((history.n_users, history.n_items))
    x[history.users, history.items] = 1
    n = x.sum(axis=1)
    w = np.where(n > 0, np.maximum(n, 1) ** -activity, 0)
    kept = np.arange(history.n_items) if items is None else items
    gram = x[:, kept].T @ (w[:, None] * x[:, kept])
    diagonal = gram.diagonal()
    p = np.linalg.inv(gram + ridge * diagonal[diagonal > 0].mean() * np.eye(len(kept)))
    scores = np.zeros(x.shape)
    scores[:, kept] = x[:, kept] @ (np.eye(len(kept)) - p / p.diagonal())
    return scores


def assert_close(ours: Tensor, theirs: Any) -> None:
    torch.testing.assert_close(ours.double(), torch.as_tensor(theirs).double(), rtol=1e-4, atol=1e-5)


@given(
    pairs=PAIRS | st.lists(PAIR, min_size=1, max_size=40),
    ridge=st.sampled_from([0.3, 10.0]),
    activity=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_scores_are_those_of_a_plain_inverse(pairs: list[tuple[int, int]], ridge: float, activity: float) -> None:
    """Also where users have items several times."""
    history = history_of(pairs)
    model = learned(history, ridge=ridge, activity=activity)
    assert_close(scores_of(model, history), plain_ease(history, ridge=ridge, activity=activity))


@given(pairs=PAIRS, cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)), max_items=st.sampled_from([4, 6, 100]))
def test_learned_in_pieces_it_is_what_it_is_at_once(
    pairs: list[tuple[int, int]], cuts: tuple[int, int], max_items: int
) -> None:
    """Also while items go on arriving, beyond the most that it can hold."""
    model, begin = ItemItemScorer(0, 0, max_items=max_items), 0
    for end in (*sorted(cuts), len(pairs)):
        part = pairs[:end]
        n_items = max((item for _, item in part), default=-1) + 1
        model.grow(7, n_items)
        before, kept = model.counts, model.counts.clone()
        history = history_of(part, n_items)
        model.learn(history, range(min(begin, len(part)), len(part)))
        assert torch.equal(before, kept)  # an older state that shares this tensor keeps it
        begin = end
    at_once = learned(history, max_items=max_items)
    assert model.rows.tolist() == at_once.rows.tolist()
    torch.testing.assert_close(model.counts, at_once.counts, rtol=1e-12, atol=1e-12)
    assert_close(scores_of(model, history), scores_of(at_once, history))


@pytest.mark.parametrize("kind", [ItemItemScorer, TransitionsScorer])
@given(pairs=st.lists(PAIR, min_size=1, max_size=40), seed=st.integers(0, 2**32))
def test_events_can_be_learned_in_any_order(kind: Any, pairs: list[tuple[int, int]], seed: int) -> None:
    """Such as an old event after a later one of the same user with the same item."""
    rng, events = np.random.default_rng(seed), np.array(pairs)
    weights, model = rng.choice([1.0, 2.5], 7), kind(7, N_ITEMS)
    known = np.empty(0, np.int64)
    for new in np.array_split(rng.permutation(len(pairs)), 3):
        known = np.union1d(known, new)
        model.learn(history_of(events[known]), np.sort(np.searchsorted(known, new)), weights)
    at_once = kind(7, N_ITEMS)
    at_once.learn(history_of(pairs), range(len(pairs)), weights)
    torch.testing.assert_close(model.counts, at_once.counts, rtol=1e-12, atol=1e-12)


@given(pairs=PAIRS, max_items=st.integers(1, N_ITEMS - 1))
def test_of_a_large_catalogue_the_most_popular_items_are_kept(pairs: list[tuple[int, int]], max_items: int) -> None:
    history = history_of(pairs)
    model = learned(history, max_items=max_items)
    counts = np.bincount(history.items, minlength=N_ITEMS)
    kept = model.rows.numpy()
    assert len(kept) == max_items
    assert counts[kept].min() >= np.delete(counts, kept).max(initial=0)
    assert_close(scores_of(model, history), plain_ease(history, ridge=10.0, activity=0.5, items=kept))


@pytest.mark.parametrize("max_items", [5, 100])
def test_any_block_of_items_and_any_candidates_get_the_same_scores(
    max_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    pairs = rng.permutation(7 * N_ITEMS)[:30]
    history = history_of([(int(pair) // N_ITEMS, int(pair) % N_ITEMS) for pair in pairs])
    model = learned(history, max_items=max_items)
    users, whole = torch.arange(7), scores_of(model, history)
    context = ContextBuilder(model.history_length, history).at(users.numpy())
    for start, stop in ((0, 1), (2, 7), (4, 4), (5, N_ITEMS)):
        assert torch.equal(model.score_range(users, start, stop, context), whole[:, start:stop])
    candidates = torch.from_numpy(rng.integers(N_ITEMS, size=(7, 4)))
    assert torch.equal(model(users, candidates, context), whole.gather(1, candidates))
    monkeypatch.setattr(module, "_SCORES_AT_ONCE", 2 * N_ITEMS)
    assert torch.equal(model(users, candidates, context), whole.gather(1, candidates))


def test_the_rows_of_the_matrix_lie_in_memory_one_after_the_other() -> None:
    """Scores are sums of rows; PyTorch would copy a matrix of columns for every list."""
    model = learned(history_of([(0, 0), (0, 1), (1, 1), (1, 2)]))
    assert model.weight.is_contiguous()
    assert model.counts.is_contiguous()


def test_it_reads_the_history_alone() -> None:
    """So anybody is served after one event, and nothing depends on the row of a user."""
    history = history_of([(0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (2, 3)])
    model = learned(history)
    same = Context(torch.tensor([[-1, -1, 0], [0, -1, -1]]))
    one, other = model.score_range(torch.tensor([0, 12345]), 0, N_ITEMS, same)
    assert torch.equal(one, other)
    assert one.argmax() == 1
    nothing = model.score_range(torch.tensor([0]), 0, N_ITEMS, Context(torch.tensor([[-1, -1]])))
    assert not nothing.any()


def test_what_is_not_learned_yet_counts_for_nothing() -> None:
    history = history_of([(0, 0), (0, 1), (1, 0), (1, 1)], n_items=2)
    model = learned(history)
    model.grow(9, 5)
    context = Context(torch.tensor([[0], [4]]))
    scores = model.score_range(torch.arange(2), 0, 5, context)
    assert scores[0].argmax() == 1
    assert not scores[0, 2:].any()
    assert not scores[1].any()
    empty = ItemItemScorer(3, 0)
    empty.learn(History.empty(), range(0))
    assert empty.score_range(torch.arange(2), 0, 0, context).shape == (2, 0)


@pytest.mark.parametrize("n_threads", [2, 3])
def test_the_number_of_threads_does_not_show_in_the_matrix(n_threads: int) -> None:
    rng = np.random.default_rng(1)
    pairs = rng.permutation(40 * 200)[:2000]
    history = History.of(pairs // 200, pairs % 200)
    alone = learned(history).counts
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        assert torch.equal(learned(history).counts, alone)
    finally:
        torch.set_num_threads(before)


def test_the_future_has_no_part_in_the_ridge() -> None:
    """A model may have rows for items that nobody has had yet (the paper's protocol gives it all)."""
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    known, wider = (learned(history_of(pairs, n_items)) for n_items in (2, N_ITEMS))
    torch.testing.assert_close(wider.weight[:2, :2], known.weight)


# ── weights ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [PopularityScorer, ItemItemScorer, TransitionsScorer])
@given(pairs=PAIRS, behind=st.sets(st.integers(0, 6)), weight=st.integers(1, 4))
def test_a_weight_counts_like_that_many_copies_of_a_user(
    kind: type[ClosedFormScorer], pairs: list[tuple[int, int]], behind: set[int], weight: int
) -> None:
    history = history_of(pairs)
    copies = [(user + 7 * copy, item) for user, item in pairs for copy in range(weight if user in behind else 1)]
    users, items = np.array(copies, dtype=np.int64).T
    repeated = History.of(users, items, n_users=7 * weight, n_items=N_ITEMS)
    weighted, plain = kind(7, N_ITEMS), kind(7 * weight, N_ITEMS)
    weights = np.array([float(weight) if user in behind else 1.0 for user in range(7)])
    weighted.learn(history, range(len(history)), weights)
    plain.learn(repeated, range(len(repeated)))
    assert_close(scores_of(weighted, history), scores_of(plain, history))


@given(pairs=PAIRS, weights=st.lists(st.floats(0.5, 4), min_size=7, max_size=7))
def test_recent_events_fade_by_their_age_whatever_their_weight(
    pairs: list[tuple[int, int]], weights: list[float]
) -> None:
    history, expected = history_of(pairs), [0.0] * N_ITEMS
    for age, (user, item) in enumerate(reversed(pairs)):
        expected[item] += weights[user] * 2 ** (-age / max(1, 0.1 * len(pairs)))
    model = RecentPopularityScorer(7, N_ITEMS)
    model.learn(history, range(0), np.array(weights))
    assert model.popularity.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", [ItemItemScorer, TransitionsScorer])
@given(pairs=PAIRS, cut=st.integers(0, N_ITEMS))
def test_scores_of_blocks_are_those_of_all_items(kind: Any, pairs: list[tuple[int, int]], cut: int) -> None:
    """Also of a block in which no item has a row, as in a catalogue that is larger than the matrix."""
    history = history_of(pairs)
    model = kind(history.n_users, history.n_items, max_items=3)
    model.learn(history, range(len(history)))
    users = np.arange(history.n_users)
    context = ContextBuilder(model.history_length, history).at(users)
    ends = [pair for pair in ((0, cut), (cut, N_ITEMS)) if pair[0] < pair[1]]
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)  # with several PyTorch refuses to sum over no columns
    try:
        blocks = [model.score_range(torch.from_numpy(users), *pair, context) for pair in ends]
    finally:
        torch.set_num_threads(n_threads)
    assert_close(torch.cat(blocks, dim=1), scores_of(model, history))
