"""P̂: rows of probabilities that become the sort as τ → 0."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.objectives import relaxed_permutation

SCORES = st.lists(st.floats(-10, 10), min_size=1, max_size=8)
DISTINCT = st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=8, unique=True)
EXTREME = st.lists(
    st.sampled_from([1e4, -1e4, 9_999.0, 1e-30, -1e-6, 0.0]) | st.floats(-1e4, 1e4, width=32), min_size=1, max_size=8
)
TAUS = st.sampled_from([0.05, 0.3, 1.0, 3.0, 100.0])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def float64(scores: list[float]) -> Tensor:
    return torch.tensor(scores, dtype=torch.float64)


def naive(scores: list[float], tau: float) -> list[list[float]]:
    """Eq. of P̂, entry by entry."""
    n = len(scores)
    rows = []
    for k in range(1, n + 1):
        logits = [((n + 1 - 2 * k) * s - sum(abs(s - other) for other in scores)) / tau for s in scores]
        exponentials = [math.exp(x - max(logits)) for x in logits]
        rows.append([x / sum(exponentials) for x in exponentials])
    return rows


def exact(scores: list[int], dtype: torch.dtype) -> Tensor:
    """The permutation matrix of the descending sort."""
    n = len(scores)
    matrix = torch.zeros(n, n, dtype=dtype)
    for rank, item in enumerate(sorted(range(n), key=lambda i: -scores[i])):
        matrix[rank, item] = 1
    return matrix


@given(SCORES, TAUS)
def test_it_is_the_papers_formula(scores: list[float], tau: float) -> None:
    torch.testing.assert_close(
        relaxed_permutation(float64(scores), tau=tau),
        torch.tensor(naive(scores, tau), dtype=torch.float64),
        rtol=1e-9,
        atol=1e-11,
    )


@DTYPES
@given(
    batch=st.lists(st.integers(1, 3), max_size=2),
    n=st.integers(1, 8),
    n_rows=st.none() | st.integers(1, 8),
    tau=st.floats(1e-4, 1e3),
    spread=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 1000),
)
def test_every_row_is_a_distribution(
    batch: list[int], n: int, n_rows: int | None, tau: float, spread: float, seed: int, dtype: torch.dtype
) -> None:
    n_rows = None if n_rows is None else min(n_rows, n)
    scores = spread * torch.randn(*batch, n, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    p_hat = relaxed_permutation(scores, tau=tau, n_rows=n_rows)
    assert p_hat.shape == (*batch, n if n_rows is None else n_rows, n)
    assert p_hat.dtype == dtype
    assert (p_hat >= 0).all()
    torch.testing.assert_close(p_hat.sum(dim=-1), torch.ones(p_hat.shape[:-1], dtype=dtype))


@DTYPES
@given(scores=DISTINCT, unit=st.sampled_from([0.25, 1.0, 4.0]))
@example(scores=[10_000, -10_000, 9_999, -9_999, 0, 1], unit=1.0)
def test_as_tau_vanishes_it_is_the_descending_sort(scores: list[int], unit: float, dtype: torch.dtype) -> None:
    p_hat = relaxed_permutation(torch.tensor(scores, dtype=dtype) * unit, tau=1e-3 * unit)
    assert torch.equal(p_hat, exact(scores, dtype))


@given(DISTINCT)
def test_as_tau_vanishes_it_sorts(scores: list[int]) -> None:
    s = float64(scores)
    assert (relaxed_permutation(s, tau=1e-3) @ s).tolist() == sorted(scores, reverse=True)


@given(SCORES, TAUS, st.data())
def test_n_rows_are_the_first_rows(scores: list[float], tau: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    s = float64(scores)
    torch.testing.assert_close(relaxed_permutation(s, tau=tau, n_rows=k), relaxed_permutation(s, tau=tau)[:k])


@given(st.integers(1, 4), st.integers(1, 6), TAUS, st.integers(0, 1000))
def test_every_list_of_a_batch_is_sorted_on_its_own(size: int, n: int, tau: float, seed: int) -> None:
    scores = torch.randn(size, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    alone = torch.stack([relaxed_permutation(row, tau=tau) for row in scores])
    torch.testing.assert_close(relaxed_permutation(scores, tau=tau), alone)


@given(SCORES, TAUS, st.randoms(use_true_random=False))
def test_permuting_the_scores_permutes_the_columns(scores: list[float], tau: float, random: object) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)  # type: ignore[attr-defined]
    s = float64(scores)
    torch.testing.assert_close(
        relaxed_permutation(s[order], tau=tau), relaxed_permutation(s, tau=tau)[:, order], rtol=1e-8, atol=1e-10
    )


@given(SCORES, TAUS)
def test_turning_the_scores_over_turns_the_ranking_over(scores: list[float], tau: float) -> None:
    s = float64(scores)
    torch.testing.assert_close(
        relaxed_permutation(-s, tau=tau), relaxed_permutation(s, tau=tau).flip(0), rtol=1e-8, atol=1e-10
    )


@given(SCORES, TAUS, st.floats(-1e4, 1e4))
def test_adding_a_constant_changes_nothing(scores: list[float], tau: float, constant: float) -> None:
    s = float64(scores)
    torch.testing.assert_close(
        relaxed_permutation(s + constant, tau=tau), relaxed_permutation(s, tau=tau), rtol=1e-7, atol=1e-8
    )


@given(st.lists(st.integers(-80, 80), min_size=1, max_size=8), TAUS, st.integers(-(2**17), 2**17))
def test_a_huge_constant_costs_no_precision(eighths: list[int], tau: float, constant: int) -> None:
    s = torch.tensor(eighths, dtype=torch.float32) / 8  # s + constant is still exact in 24 bits
    p_hat = relaxed_permutation(s, tau=tau)
    assert torch.equal(relaxed_permutation(s + constant, tau=tau), p_hat)
    stack_periods = torch.stack([s, s + constant])  # nor does it cost the other lists of the batch any
    assert torch.equal(relaxed_permutation(stack_periods, tau=tau), torch.stack([p_hat, p_hat]))


@given(SCORES, TAUS, st.sampled_from([1e-3, 0.1, 7.0]))
def test_only_scores_relative_to_tau_count(scores: list[float], tau: float, unit: float) -> None:
    s = float64(scores)
    torch.testing.assert_close(
        relaxed_permutation(s * unit, tau=tau * unit), relaxed_permutation(s, tau=tau), rtol=1e-8, atol=1e-10
    )


def test_tied_items_share_a_rank() -> None:
    p_hat = relaxed_permutation(torch.tensor([2.0, 5.0, 5.0]), tau=1e-3)
    assert p_hat.tolist() == [[0.0, 0.5, 0.5], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]


@given(EXTREME, st.sampled_from([1e-3, 0.3, 3.0]))
def test_value_and_gradient_are_finite_at_extreme_scores(scores: list[float], tau: float) -> None:
    s = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    p_hat = relaxed_permutation(s, tau=tau)
    direction = torch.arange(p_hat.numel(), dtype=torch.float32).reshape(p_hat.shape)
    (grad,) = torch.autograd.grad((p_hat * direction).sum(), s)
    assert p_hat.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("n_rows", [None, 1, 3])
@pytest.mark.parametrize("tau", [0.5, 3.0])
def test_gradient_agrees_with_finite_differences(n_rows: int | None, tau: float) -> None:
    scores = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert gradcheck(lambda s: relaxed_permutation(s, tau=tau, n_rows=n_rows), scores, atol=1e-7)
