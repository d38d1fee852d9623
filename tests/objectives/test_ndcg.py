"""Differentiable NDCG@K: the exact one as τ → 0."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from fairstream.objectives import differentiable_ndcg
from support import DTYPES, EXTREME, ranked_lists


def exact_ndcg(scores: list[int], relevance: list[int], k: int) -> float:
    ranked = [y for _, y in sorted(zip(scores, relevance, strict=True), reverse=True)]
    dcg = sum(y / math.log2(rank + 1) for rank, y in enumerate(ranked[:k], start=1))
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, sum(relevance)) + 1))
    return dcg / best if best else 0.0


@DTYPES
@given(ranked=ranked_lists(), k=st.integers(1, 10))
@example(ranked=([-10_000, 10_000, 9_999, -9_999, 0], [1, 0, 1, 1, 0]), k=3)
def test_as_tau_vanishes_it_is_the_exact_ndcg(ranked: tuple[list[int], list[int]], k: int, dtype: torch.dtype) -> None:
    scores, relevance = ranked
    found = differentiable_ndcg(torch.tensor(scores, dtype=dtype), torch.tensor(relevance, dtype=dtype), k=k, tau=1e-3)
    assert found.dtype == dtype
    assert found.item() == pytest.approx(exact_ndcg(scores, relevance, k), abs=1e-6)


@given(st.lists(ranked_lists().filter(lambda x: len(x[0]) >= 4), min_size=1, max_size=4), st.integers(1, 5))
def test_list_by_list(ranked: list[tuple[list[int], list[int]]], k: int) -> None:
    scores = torch.tensor([s[:4] for s, _ in ranked], dtype=torch.float64) / 1000
    relevance = torch.tensor([y[:4] for _, y in ranked], dtype=torch.float64)
    found = differentiable_ndcg(scores, relevance, k=k, tau=1.0)
    alone = [differentiable_ndcg(s, y, k=k, tau=1.0) for s, y in zip(scores, relevance, strict=True)]
    torch.testing.assert_close(found, torch.stack(alone))


@given(st.lists(EXTREME, min_size=1, max_size=8), st.integers(1, 10), st.sampled_from([1e-3, 3.0]))
def test_nothing_relevant_gives_0_and_no_gradient(scores: list[float], k: int, tau: float) -> None:
    s = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    ndcg = differentiable_ndcg(s, torch.zeros(len(scores)), k=k, tau=tau)
    (grad,) = torch.autograd.grad(ndcg, s)
    assert ndcg.item() == 0
    assert not grad.any()


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.integers(1, 8))
def test_everything_relevant_gives_1_at_any_temperature(scores: list[float], k: int) -> None:
    s = torch.tensor(scores, dtype=torch.float64)
    assert differentiable_ndcg(s, torch.ones_like(s), k=k, tau=1.0).item() == pytest.approx(1)


@given(st.lists(EXTREME, min_size=2, max_size=8), st.integers(1, 8), st.sampled_from([1e-3, 0.3, 3.0]))
@example([1e4, -1e4, 1e-30], 2, 3.0)
def test_value_and_gradient_are_finite_at_extreme_scores(scores: list[float], k: int, tau: float) -> None:
    s = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    relevance = torch.tensor([float(i % 2) for i in range(len(scores))])
    ndcg = differentiable_ndcg(s, relevance, k=k, tau=tau)
    (grad,) = torch.autograd.grad(ndcg, s)
    assert ndcg.isfinite()
    assert grad.isfinite().all()


@pytest.mark.parametrize("k", [1, 3, 9])
def test_gradient_agrees_with_finite_differences(k: int) -> None:
    scores = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    relevance = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], dtype=torch.float64)
    assert gradcheck(lambda s: differentiable_ndcg(s, relevance, k=k, tau=1.0), scores, atol=1e-7)
