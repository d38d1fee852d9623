"""NeuralNDCG and ApproxNDCG: the exact NDCG@k as τ → 0, and what the fairness loss takes of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.objectives import (
    approx_ndcg,
    neural_ndcg,
    positive_approx_ndcg,
    positive_neural_ndcg,
    relaxed_permutation,
)
from support import DTYPES, EXTREME, ranked_lists

Metric = Callable[..., Tensor]
BOTH = pytest.mark.parametrize("metric", [neural_ndcg, approx_ndcg])
ON_ONE_POSITIVE = pytest.mark.parametrize(
    ("metric", "of_first_item"), [(neural_ndcg, positive_neural_ndcg), (approx_ndcg, positive_approx_ndcg)]
)


def exact(scores: list[int], relevance: list[int], k: int) -> float:
    """NDCG@k by counting for each relevant item how many are before it."""
    ranks = [1 + sum(other > s for other in scores) for s, y in zip(scores, relevance, strict=True) if y]
    dcg = sum(1 / math.log2(1 + rank) for rank in ranks if rank <= k)
    best = sum(1 / math.log2(1 + rank) for rank in range(1, min(k, len(ranks)) + 1))
    return dcg / best if best else 0.0


@DTYPES
@BOTH
@given(ranked=ranked_lists(), k=st.integers(1, 10))
@example(ranked=([-10_000, 10_000, 9_999, -9_999, 0], [1, 0, 1, 1, 0]), k=3)
@example(ranked=([10_000, 9_999, 9_998], [0, 0, 1]), k=2)
def test_as_tau_vanishes_it_is_the_exact_ndcg(
    ranked: tuple[list[int], list[int]], k: int, metric: Metric, dtype: torch.dtype
) -> None:
    scores, relevance = ranked
    found = metric(torch.tensor(scores, dtype=dtype), torch.tensor(relevance, dtype=dtype), k=k, tau=1e-3)
    assert found.dtype == dtype
    assert found.item() == pytest.approx(exact(scores, relevance, k), abs=1e-6)


@BOTH
@given(ranked=ranked_lists(), k=st.integers(1, 10), tau=st.sampled_from([0.3, 3.0]), data=st.data())
def test_the_order_in_which_candidates_are_given_does_not_matter(
    ranked: tuple[list[int], list[int]], k: int, tau: float, data: st.DataObject, metric: Metric
) -> None:
    s, y = torch.tensor(ranked[0], dtype=torch.float64) / 1000, torch.tensor(ranked[1], dtype=torch.float64)
    order = data.draw(st.permutations(range(len(s))))
    torch.testing.assert_close(metric(s[order], y[order], k=k, tau=tau), metric(s, y, k=k, tau=tau))


@BOTH
@given(lists=st.lists(ranked_lists().filter(lambda x: len(x[0]) >= 4), min_size=1, max_size=4), k=st.integers(1, 5))
def test_list_by_list(lists: list[tuple[list[int], list[int]]], k: int, metric: Metric) -> None:
    scores = torch.tensor([s[:4] for s, _ in lists], dtype=torch.float64) / 1000
    relevance = torch.tensor([y[:4] for _, y in lists], dtype=torch.float64)
    alone = [metric(s, y, k=k, tau=1.0) for s, y in zip(scores, relevance, strict=True)]
    torch.testing.assert_close(metric(scores, relevance, k=k, tau=1.0), torch.stack(alone))


@BOTH
@given(scores=st.lists(EXTREME, min_size=1, max_size=8), k=st.integers(1, 10), tau=st.sampled_from([1e-3, 3.0]))
def test_nothing_relevant_gives_0_and_no_gradient(scores: list[float], k: int, tau: float, metric: Metric) -> None:
    s = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    ndcg = metric(s, torch.zeros(len(scores)), k=k, tau=tau)
    (grad,) = torch.autograd.grad(ndcg, s)
    assert ndcg.item() == 0
    assert not grad.any()


@BOTH
@given(scores=st.lists(EXTREME, min_size=2, max_size=8), k=st.integers(1, 8), tau=st.sampled_from([1e-3, 0.3, 3.0]))
@example(scores=[1e4, -1e4, 1e-30], k=2, tau=3.0)
@example(scores=[0.0, 0.0, 0.0], k=3, tau=1e-3)
def test_value_and_gradient_are_finite_at_extreme_scores(
    scores: list[float], k: int, tau: float, metric: Metric
) -> None:
    s = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    relevance = torch.tensor([float(i % 2) for i in range(len(scores))])
    ndcg = metric(s, relevance, k=k, tau=tau)
    (grad,) = torch.autograd.grad(ndcg, s)
    assert ndcg.isfinite()
    assert grad.isfinite().all()


def test_scores_so_huge_that_the_relaxed_ranking_is_rounding_alone_give_numbers_too() -> None:
    s = 1e6 * torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    s[:, 1:5] = s[:, :4] * (1 + 2e-7)  # neighbours in float32
    s.requires_grad_()
    assert (relaxed_permutation(s, tau=1e-3).sum(dim=-2) == 0).any()  # columns that no row gives anything
    value = positive_neural_ndcg(s, tau=1e-3)
    (grad,) = torch.autograd.grad(value.sum(), s)
    assert value.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.few(3)
@BOTH
@pytest.mark.parametrize("k", [1, 3, 9])
def test_gradient_agrees_with_finite_differences(k: int, metric: Metric) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    relevance = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]], dtype=torch.float64)
    assert gradcheck(lambda s: metric(s, relevance, k=k, tau=1.0), scores, atol=1e-7)


@ON_ONE_POSITIVE
@given(row=st.lists(st.floats(-10, 10), min_size=2, max_size=9), tau=st.sampled_from([0.3, 1.0, 3.0]))
def test_with_one_positive_in_column_0_it_is_the_metric_over_all_ranks(
    row: list[float], tau: float, metric: Metric, of_first_item: Metric
) -> None:
    s = torch.tensor([row, row[::-1]], dtype=torch.float64)
    relevance = torch.zeros_like(s)
    relevance[:, 0] = 1
    expected = metric(s, relevance, k=len(row), tau=tau)
    torch.testing.assert_close(of_first_item(s, tau=tau), expected)


@pytest.mark.few(1)
@ON_ONE_POSITIVE
def test_so_is_its_gradient(metric: Metric, of_first_item: Metric) -> None:
    scores = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert gradcheck(lambda s: of_first_item(s, tau=3.0), scores, atol=1e-7)
    relevance = torch.zeros_like(scores)
    relevance[:, 0] = 1
    found, expected = (
        torch.autograd.grad(value.sum(), scores)[0]
        for value in (of_first_item(scores, tau=3.0), metric(scores, relevance, k=5, tau=3.0))
    )
    torch.testing.assert_close(found, expected)
