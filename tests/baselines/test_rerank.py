"""The fast reranking against the exact one, and what it promises by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairstream.baselines import Program, Rerank, Reranking
from fairstream.baselines.rerank import rerank
from fairstream.baselines.rerank_exact import rerank_exact
from fairstream.data import UNKNOWN
from fairstream.errors import ConfigurationError

TOLERANCES = st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2, 0.4])
NO_BOUND = 9.0


@st.composite
def programs(draw: st.DrawFn, own_labels: bool | None = None) -> Program:
    """Small ones: some candidates missing, many equal scores, labels of the model or any others."""
    n_users, n_columns = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.normal(size=(n_users, n_columns)).round(draw(st.integers(0, 5)))
    scores[rng.random(scores.shape) < draw(st.sampled_from([0.0, 0.2]))] = -np.inf
    codes = rng.choice(np.array([0, 1, 1, UNKNOWN]), n_users).astype(np.int16)
    own = draw(st.booleans()) if own_labels is None else own_labels
    labels = None if own else rng.random(scores.shape) < rng.random()
    k = draw(st.integers(1, min(4, n_columns)))
    return Program.of(scores, codes, k=k, tolerance=draw(TOLERANCES), relevant=labels)


def is_coarse(program: Program) -> bool:
    """Whether no exchange is larger than the window of gaps that are within the tolerance."""
    return bool(np.abs(program.weights).max(initial=0.0) <= 2 * program.tolerance)


def last_exchange(program: Program) -> float:
    """What the exchange costs that brings the gap to the tolerance, the cheapest first; 0 where none is needed."""
    best = np.argsort(-program.scores, axis=1, kind="stable")
    exchanges, gap = [], 0.0
    for user, weight in enumerate(program.weights):
        row, length = best[user], program.lengths[user]
        listed, others = row[:length].tolist(), [i for i in row[length:] if program.there[user, i]]
        gap += weight * program.relevant[user, listed].sum()
        exchanges.append((weight, [(i, program.relevant[user, i]) for i in listed], others))
    found = []
    for user, (weight, listed, others) in enumerate(exchanges):
        takes_out = weight * gap > 0
        leaving = [i for i, is_relevant in reversed(listed) if is_relevant == takes_out]
        coming = [i for i in others if program.relevant[user, i] != takes_out]
        costs = [program.scores[user, i] - program.scores[user, j] for i, j in zip(leaving, coming, strict=False)]
        found += [(cost / abs(weight), abs(weight), cost) for cost in costs if weight]
    missing = abs(gap) - program.tolerance
    for _, size, cost in sorted(found):
        if missing <= 1e-12:
            break
        missing, last = missing - size, cost
    return last if abs(gap) > program.tolerance + 1e-12 and found else 0.0


def chosen(program: Program, found: Reranking) -> list[list[int]]:
    """Each user's list without what stands behind its end."""
    return [row[:length].tolist() for row, length in zip(found.columns, program.lengths, strict=True)]


def gap_by_hand(program: Program, codes: Any, lists: list[list[int]]) -> float:
    means = []
    for group in (0, 1):
        users = [u for u, code in enumerate(codes) if code == group]
        hits = {u: sum(bool(program.relevant[u, i]) for i in lists[u]) for u in users}
        means.append(sum(2 * hits[u] / (program.k + program.relevant[u].sum()) for u in users) / len(users))
    return means[0] - means[1]


# ── against the exact solution ───────────────────────────────────────────────────────────


@pytest.mark.slow
@given(programs())
def test_it_is_within_one_exchange_of_the_optimum_and_knows_it(program: Program) -> None:
    fast, exact = rerank(program), rerank_exact(program)
    assert fast.shortfall >= -1e-9
    if exact is None:
        assert not fast.is_within
        return
    assert exact.is_within
    if is_coarse(program):
        assert fast.is_within
    if fast.is_within:
        assert fast.value <= exact.value + 1e-9
        assert fast.upper_bound >= exact.value - 1e-9  # so the shortfall is at least the true loss
    else:
        assert abs(fast.gap) > program.tolerance
    if is_coarse(program):
        assert exact.value - fast.value <= fast.shortfall + 1e-9 <= last_exchange(program) + 2e-9


@given(programs())
def test_where_the_tolerance_cannot_be_met_there_are_no_better_lists_as_close(program: Program) -> None:
    """The bound is then that of lists with a gap as small as the one that was reached."""
    fast = rerank(program)
    reached = replace(program, tolerance=max(program.tolerance, abs(fast.gap) + 1e-9))
    exact = rerank_exact(reached)
    assert exact is not None
    assert fast.value - 1e-6 <= exact.value <= rerank(reached).upper_bound + 1e-6
    assert fast.upper_bound >= exact.value - 1e-6


def test_a_gap_that_no_exchange_can_close_is_made_as_small_as_it_can_be() -> None:
    """The only user ahead has nothing irrelevant to take in, and no other user has anything to offer."""
    scores = np.array([[3.0, 2.0, -np.inf], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    relevant = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=np.bool_)
    program = Program.of(scores, np.array([0, 1, 1]), k=2, tolerance=0.1, relevant=relevant)
    found = rerank(program)
    assert rerank_exact(program) is None
    assert (found.is_within, found.shortfall) == (False, 0.0)
    assert found.gap == pytest.approx(1.0 - (0.0 + 2 / 3) / 2)


def test_where_every_exchange_overshoots_further_than_it_helps_nothing_is_done() -> None:
    """F1 is 1 against 2/3, one exchange would make it 0 against 2/3, and the other user has none."""
    scores, relevant = np.array([[3.0, 2.0], [3.0, 2.0]]), np.array([[True, False], [True, True]])
    found = rerank(Program.of(scores, np.array([0, 1]), k=1, tolerance=0.1, relevant=relevant))
    assert found.columns.tolist() == [[0], [0]]
    assert (found.gap, found.is_within) == (pytest.approx(1 / 3), False)


@pytest.mark.parametrize("seed", range(10))
def test_a_few_users_ahead_overshoot_and_the_many_others_make_up_for_it(seed: int) -> None:
    """One exchange of a group of five moves its F1 by much more than 2 ε; those of the three hundred by less."""
    codes = np.repeat([0, 1], [5, 300]).astype(np.int16)
    scores = np.random.default_rng(seed).gamma(np.where(codes == 0, 5.0, 1.0)[:, None], size=(305, 60))
    program = Program.of(scores, codes, k=10, tolerance=4e-4)
    assert np.abs(program.weights[:5]).min() > 10 * program.tolerance
    assert rerank(program).is_within


@pytest.mark.few(20)
@pytest.mark.parametrize("seed", range(40))
def test_the_end_is_never_dearer_than_the_plain_one(seed: int) -> None:
    """With many sizes to choose from, and each no larger than 2 ε."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2, 40).astype(np.int16)
    scores = rng.gamma(np.where(codes == 0, 4.0, 0.5)[:, None], size=(40, 15))
    program = Program.of(scores, codes, k=5, tolerance=0.02)
    assert is_coarse(program)
    found = rerank(program)
    assert found.is_within
    assert 0 <= found.shortfall <= last_exchange(program) + 1e-9


def test_one_exchange_is_taken_in_place_of_two_where_it_is_cheaper() -> None:
    """By cost per gap the first user's would come first, the third's behind it; the third's alone is enough."""
    n_relevant, cost = np.array([3, 3, 1, 9]), np.array([0.25, 0.6, 0.7, 1.0])
    column = np.arange(10)
    relevant = column < n_relevant[:, None]
    scores = np.where(relevant, 10.0, np.where(column == n_relevant[:, None], 10.0 - cost[:, None], -np.inf))
    program = Program.of(scores, np.array([0, 0, 0, 1]), k=1, tolerance=0.2, relevant=relevant)
    found, exact = rerank(program), rerank_exact(program)
    assert exact is not None
    assert found.value == pytest.approx(40.0 - 0.7) == exact.value
    assert found.columns.tolist() == [[0], [0], [1], [0]]


# ── by itself ────────────────────────────────────────────────────────────────────────────


@given(programs())
def test_every_list_is_k_different_candidates_the_best_first(program: Program) -> None:
    found = rerank(program)
    assert found.columns.shape == (len(program.scores), program.k)
    for row, scores in zip(chosen(program, found), program.scores, strict=True):
        assert len(set(row)) == len(row) == min(program.k, np.isfinite(scores).sum())
        assert np.isfinite(scores[row]).all()
        assert sorted(row, key=lambda i: (-scores[i], i)) == row
    beyond = np.arange(program.k) >= program.lengths[:, None]
    assert not np.take_along_axis(program.there, found.columns, axis=1)[beyond].any()


@given(st.data())
def test_value_and_gap_are_those_of_the_lists(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 8))
    codes = np.array([0, 1, *data.draw(st.lists(st.integers(-1, 1), min_size=n - 2, max_size=n - 2))], np.int16)
    scores = np.random.default_rng(data.draw(st.integers(0, 999))).normal(size=(n, 7))
    found = Rerank(tolerance=data.draw(TOLERANCES))(scores, codes, 3)
    program = Program.of(scores, codes, k=3, tolerance=0.0)
    lists = chosen(program, found)
    assert found.value == pytest.approx(sum(scores[u, row].sum() for u, row in enumerate(lists)))
    assert found.gap == pytest.approx(gap_by_hand(program, codes, lists), abs=1e-12)


@given(programs())
def test_where_the_best_lists_are_within_the_tolerance_they_are_taken(program: Program) -> None:
    best = rerank(replace(program, tolerance=NO_BOUND))
    expected = np.argsort(-program.scores, axis=1, kind="stable")[:, : program.k]
    assert chosen(program, best) == chosen(program, replace(best, columns=expected))
    assert best.shortfall == 0
    again = rerank(replace(program, tolerance=abs(best.gap)))
    assert np.array_equal(again.columns, best.columns)


@given(programs())
def test_a_smaller_gap_is_never_worse_than_the_first_and_users_without_a_group_keep_their_best(
    program: Program,
) -> None:
    best, fair = rerank(replace(program, tolerance=NO_BOUND)), rerank(program)
    assert abs(fair.gap) <= abs(best.gap) + 1e-12
    assert fair.value <= best.value + 1e-9
    apart = program.weights == 0
    assert np.array_equal(fair.columns[apart], best.columns[apart])


@given(programs(own_labels=True))
def test_by_the_models_own_labels_no_list_gains_a_relevant_item(program: Program) -> None:
    """The best K hold as many as they can already."""
    best, fair = (
        np.take_along_axis(program.relevant, rerank(replace(program, tolerance=eps)).columns, axis=1).sum(axis=1)
        for eps in (NO_BOUND, program.tolerance)
    )
    assert (fair <= best).all()


@given(programs(), st.integers(0, 999))
def test_the_order_of_the_users_does_not_matter(program: Program, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(program.scores))
    shuffled = replace(
        program, scores=program.scores[order], relevant=program.relevant[order], weights=program.weights[order]
    )
    ours, theirs = rerank(program), rerank(shuffled)
    for name in ("value", "gap", "upper_bound"):
        assert getattr(theirs, name) == pytest.approx(getattr(ours, name), abs=1e-9)
    assert ours.is_within == theirs.is_within


@example(seed=422, tolerance=0.0)  # two ends come equally close, but for rounding, at very different costs
@given(st.integers(0, 999), TOLERANCES)
def test_with_scores_all_different_each_user_gets_the_same_list_wherever_it_stands(seed: int, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    scores, codes, order = rng.normal(size=(12, 9)), rng.integers(0, 2, 12).astype(np.int16), rng.permutation(12)
    found = Rerank(tolerance)(scores, codes, 3)
    assert np.array_equal(Rerank(tolerance)(scores[order], codes[order], 3).columns, found.columns[order])


@given(programs())
def test_adding_to_all_scores_or_scaling_them_changes_no_list(program: Program) -> None:
    other = replace(program, scores=program.scores * 4 + 1024)
    assert np.array_equal(rerank(other).columns, rerank(program).columns)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tolerance", [0.001, 0.0002])
def test_thousands_of_users_are_within_the_tolerance_at_a_loss_below_one_exchange(seed: int, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    codes = (rng.random(1500) < 0.3).astype(np.int16)
    scores = rng.gamma(np.where(codes == 0, 3.0, 1.0)[:, None], size=(1500, 120))
    found = Rerank(tolerance)(scores, codes, 20)
    assert found.is_within
    assert abs(Rerank(NO_BOUND)(scores, codes, 20).gap) > 0.02
    assert 0 <= found.shortfall < 1  # of a sum of about a hundred thousand


def test_a_group_without_anybody_leaves_nothing_to_compare() -> None:
    scores = np.random.default_rng(0).normal(size=(4, 6))
    for codes in ([0, 0, 0, -1], [1, 1, 1, 1], [-1, -1, -1, -1]):
        found = Rerank(0.0)(scores, np.array(codes, np.int16), 2)
        assert (found.gap, found.is_within) == (0.0, True)
        assert np.array_equal(found.columns, np.argsort(-scores, axis=1)[:, :2])


def test_nobody_at_all() -> None:
    found = Rerank(0.0)(np.empty((0, 5)), np.empty(0, np.int16), 3)
    assert found.columns.shape == (0, 3)
    assert (found.value, found.gap, found.is_within, found.shortfall) == (0.0, 0.0, True, 0.0)


# ── what is refused ──────────────────────────────────────────────────────────────────────


def test_more_than_two_groups_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"one other, got 3 groups; choose a group column with two values"):
        Rerank(0.1)(np.zeros((3, 4)), np.array([0, 1, 2], np.int16), 2)


def test_too_few_columns_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"a list of 5 needs at least 5 columns of candidates, got 4"):
        Rerank(0.1)(np.zeros((3, 4)), np.array([0, 1, 1], np.int16), 5)
