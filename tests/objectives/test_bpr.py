"""L_rec: the formula of Section 3.2 to the letter, and finite where the letter overflows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.objectives import bpr_loss

MODERATE = st.floats(-30, 30)
EXTREME = st.sampled_from([1e4, -1e4, 9_999.0, 1e-30, -1e-6, 0.0]) | st.floats(-1e4, 1e4, width=32)


def tables(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[float]]]:
    """Scores (B, 1 + n), row by row."""
    return st.tuples(st.integers(1, 5), st.integers(2, 6)).flatmap(
        lambda shape: st.lists(
            st.lists(values, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
        )
    )


def naive(rows: list[list[float]]) -> float:
    total = 0.0
    for positive, *negatives in rows:
        total += sum(math.log(1 / (1 + math.exp(-(positive - other)))) for other in negatives) / len(negatives)
    return -total / len(rows)


def float64(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@given(tables(MODERATE))
def test_it_is_the_papers_formula(rows: list[list[float]]) -> None:
    assert bpr_loss(float64(rows)).item() == pytest.approx(naive(rows), rel=1e-9, abs=1e-12)


@given(tables(MODERATE), st.integers(-1000, 1000))
def test_only_differences_within_a_row_count(rows: list[list[float]], offset: int) -> None:
    scores = float64(rows)
    moved = scores + offset * torch.arange(1, len(rows) + 1, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(bpr_loss(moved), bpr_loss(scores), rtol=1e-8, atol=1e-10)


@given(tables(MODERATE))
def test_the_order_of_the_negatives_does_not_count(rows: list[list[float]]) -> None:
    scores = float64(rows)
    turned = torch.cat([scores[:, :1], scores[:, 1:].flip(-1)], dim=-1)
    torch.testing.assert_close(bpr_loss(turned), bpr_loss(scores))


@given(tables(MODERATE))
def test_it_pulls_every_positive_up_and_pushes_every_negative_down(rows: list[list[float]]) -> None:
    scores = float64(rows).requires_grad_()
    (grad,) = torch.autograd.grad(bpr_loss(scores), scores)
    assert (grad[:, 0] < 0).all()
    assert (grad[:, 1:] > 0).all()


@given(tables(EXTREME))
@example([[1e4, -1e4], [-1e4, 1e4]])
def test_value_and_gradient_are_finite_at_extreme_scores(rows: list[list[float]]) -> None:
    scores = torch.tensor(rows, dtype=torch.float32, requires_grad=True)
    loss = bpr_loss(scores)
    (grad,) = torch.autograd.grad(loss, scores)
    assert loss.isfinite()
    assert loss >= 0
    assert grad.isfinite().all()


def test_far_from_0_it_is_the_margin_itself() -> None:
    assert bpr_loss(torch.tensor([[-1e4, 1e4]])).item() == 2e4  # the wrong way round: still a slope to walk down
    assert bpr_loss(torch.tensor([[1e4, -1e4]])).item() == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_gradient_agrees_with_finite_differences(seed: int) -> None:
    scores = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert gradcheck(bpr_loss, scores.mul(3).requires_grad_(), atol=1e-7)
