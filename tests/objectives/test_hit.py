"""DH: the exact hit as τ → 0, with slopes before that."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.objectives import positive_hit, relaxed_permutation
from support import DTYPES, EXTREME, ranked_lists

TAUS = st.sampled_from([0.05, 0.3, 1.0, 3.0, 100.0])


def exact_hit(scores: list[int], relevance: list[int], k: int) -> int:
    kth_best = sorted(scores, reverse=True)[k - 1]
    return relevance[scores.index(kth_best)]


def differentiable_hits(scores: Tensor, relevance: Tensor, *, n_ranks: int, tau: float) -> Tensor:
    """DH(C; 1) … DH(C; n_ranks)."""
    return (relaxed_permutation(scores, tau=tau, n_rows=n_ranks) * relevance.unsqueeze(-2)).sum(dim=-1)


def differentiable_hit(scores: Tensor, relevance: Tensor, *, k: int, tau: float) -> Tensor:
    """DH(C; k) = P̂[k, :] · Y."""
    return differentiable_hits(scores, relevance, n_ranks=k, tau=tau)[..., -1]


def random_lists(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, dtype=torch.float64, generator=generator)
    return scores, torch.randint(2, shape, generator=generator).to(torch.float64)


@DTYPES
@given(ranked=ranked_lists())
@example(ranked=([-10_000, 10_000, 9_999, -9_999, 0], [0, 1, 0, 1, 1]))
def test_as_tau_vanishes_it_is_the_exact_hit_at_every_rank(
    ranked: tuple[list[int], list[int]], dtype: torch.dtype
) -> None:
    scores, relevance = ranked
    s, y = torch.tensor(scores, dtype=dtype), torch.tensor(relevance, dtype=dtype)
    for k in range(1, len(scores) + 1):
        assert differentiable_hit(s, y, k=k, tau=1e-3).item() == exact_hit(scores, relevance, k)


@given(ranked_lists(), TAUS)
def test_one_hit_is_one_of_all_hits(ranked: tuple[list[int], list[int]], tau: float) -> None:
    s, y = (torch.tensor(x, dtype=torch.float64) for x in ranked)
    hits = differentiable_hits(s, y, n_ranks=len(s), tau=tau)
    assert hits.shape == s.shape
    for k, expected in enumerate(hits, start=1):
        torch.testing.assert_close(differentiable_hit(s, y, k=k, tau=tau), expected)


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 6), TAUS)
def test_it_is_a_probability_and_whatever_is_not_relevant_has_the_rest_of_it(
    seed: int, size: int, n: int, tau: float
) -> None:
    s, y = random_lists(seed, size, n)
    hits = differentiable_hits(s, y, n_ranks=n, tau=tau)
    misses = differentiable_hits(s, 1 - y, n_ranks=n, tau=tau)
    assert hits.shape == (size, n)
    assert ((hits >= 0) & (hits <= 1 + 1e-12)).all()
    torch.testing.assert_close(hits + misses, torch.ones_like(hits))


@given(st.integers(0, 1000), st.lists(st.integers(1, 3), max_size=2), st.integers(1, 7), TAUS)
def test_first_item_hit_is_the_hit_of_column_0_at_rank_1(seed: int, batch: list[int], mu: int, tau: float) -> None:
    s, y = random_lists(seed, *batch, 1 + mu)
    y.zero_()[..., 0] = 1
    dh = positive_hit(s, tau=tau)
    assert dh.shape == tuple(batch)
    torch.testing.assert_close(dh, differentiable_hit(s, y, k=1, tau=tau))


@given(st.integers(0, 1000), TAUS, st.floats(0.01, 5))
def test_first_item_hit_grows_with_the_positives_score(seed: int, tau: float, step: float) -> None:
    s, _ = random_lists(seed, 3, 5)
    higher = s + step * torch.eye(5, dtype=torch.float64)[0]
    assert (positive_hit(higher, tau=tau) >= positive_hit(s, tau=tau)).all()


@given(st.lists(EXTREME, min_size=2, max_size=8), st.sampled_from([1e-3, 0.3, 3.0]))
@example([1e4, -1e4, 1e-30], 3.0)
@example([-1e4, 1e4, 1e4], 3.0)
def test_value_and_gradient_are_finite_at_extreme_scores(scores: list[float], tau: float) -> None:
    s = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    y = torch.tensor([float(i % 2) for i in range(len(scores))])
    for value in (positive_hit(s, tau=tau), differentiable_hit(s, y, k=len(scores), tau=tau)):
        (grad,) = torch.autograd.grad(value, s)
        assert 0 <= value <= 1 + 1e-6
        assert grad.isfinite().all()


@pytest.mark.parametrize("tau", [0.5, 3.0])
def test_gradient_agrees_with_finite_differences(tau: float) -> None:
    s, y = random_lists(1, 3, 5)
    s.requires_grad_()
    assert gradcheck(lambda x: positive_hit(x, tau=tau), s, atol=1e-7)
    assert gradcheck(lambda x: differentiable_hit(x, y, k=3, tau=tau), s, atol=1e-7)
    assert gradcheck(lambda x: differentiable_hits(x, y, n_ranks=4, tau=tau), s, atol=1e-7)
