"""NeuralNDCG and ApproxNDCG of one positive: the exact NDCG as τ → 0."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.objectives import relaxed_permutation
from fairstream.paper.surrogates import positive_approx_ndcg, positive_neural_ndcg
from support import DTYPES, EXTREME

Metric = Callable[..., Tensor]
BOTH = pytest.mark.parametrize("metric", [positive_neural_ndcg, positive_approx_ndcg])


@DTYPES
@BOTH
@given(scores=st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=8, unique=True))
@example(scores=[-10_000, 10_000, 9_999, -9_999, 0])
@example(scores=[9_998, 10_000, 9_999])
def test_as_tau_vanishes_it_is_the_exact_ndcg(scores: list[int], metric: Metric, dtype: torch.dtype) -> None:
    value = metric(torch.tensor(scores, dtype=dtype), tau=1e-3)
    rank = 1 + sum(other > scores[0] for other in scores)
    assert value.dtype == dtype
    assert value.item() == pytest.approx(1 / math.log2(1 + rank), abs=1e-6)


@BOTH
@given(
    first=st.floats(-10, 10),
    others=st.lists(st.floats(-10, 10), min_size=1, max_size=8),
    tau=st.sampled_from([0.3, 3.0]),
    data=st.data(),
)
def test_the_order_of_the_negatives_does_not_matter(
    first: float, others: list[float], tau: float, data: st.DataObject, metric: Metric
) -> None:
    shuffled = data.draw(st.permutations(others))
    rows = torch.tensor([[first, *others], [first, *shuffled]], dtype=torch.float64)
    one, other = metric(rows, tau=tau)
    torch.testing.assert_close(one, other)


@BOTH
@given(scores=st.lists(EXTREME, min_size=2, max_size=8), tau=st.sampled_from([1e-3, 0.3, 3.0]))
@example(scores=[1e4, -1e4, 1e-30], tau=3.0)
@example(scores=[0.0, 0.0, 0.0], tau=1e-3)
def test_value_and_gradient_are_finite_at_extreme_scores(scores: list[float], tau: float, metric: Metric) -> None:
    s = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    value = metric(s, tau=tau)
    (grad,) = torch.autograd.grad(value, s)
    assert value.isfinite()
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


@pytest.mark.few(1)
@BOTH
def test_gradient_agrees_with_finite_differences(metric: Metric) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(6, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    assert gradcheck(lambda s: metric(s, tau=3.0), scores, atol=1e-7)
