"""L_fair and L_fair-abs: the same where the advantaged group is ahead, apart where it is behind."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.objectives import FairnessLoss, fairness_loss

DPD = st.floats(-1, 1)
KINDS = pytest.mark.parametrize("kind", ["signed", "absolute"])


def float64(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def slope(dpd: float, kind: FairnessLoss) -> float:
    x = float64(dpd).requires_grad_()
    (grad,) = torch.autograd.grad(fairness_loss(x, kind), x)
    return grad.item()


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@given(DPD)
def test_they_are_the_papers_formulas(dpd: float) -> None:
    assert fairness_loss(float64(dpd), "signed").item() == pytest.approx(-math.log(sigmoid(-dpd)))
    assert fairness_loss(float64(dpd), "absolute").item() == pytest.approx(-math.log(sigmoid(-abs(dpd))))


def test_signed_is_the_default() -> None:
    assert torch.equal(fairness_loss(float64(-0.5)), fairness_loss(float64(-0.5), "signed"))


@given(st.floats(0, 1))
def test_they_agree_while_the_disadvantaged_are_behind(dpd: float) -> None:
    assert torch.equal(fairness_loss(float64(dpd), "signed"), fairness_loss(float64(dpd), "absolute"))


@given(st.floats(1e-6, 1))
def test_signed_is_below_absolute_once_they_are_ahead(ahead: float) -> None:
    assert fairness_loss(float64(-ahead), "signed") < fairness_loss(float64(-ahead), "absolute")


@given(DPD)
def test_absolute_is_even(dpd: float) -> None:
    assert torch.equal(fairness_loss(float64(-dpd), "absolute"), fairness_loss(float64(dpd), "absolute"))


@given(DPD, st.floats(1e-6, 1))
def test_signed_is_increasing(dpd: float, step: float) -> None:
    assert fairness_loss(float64(dpd), "signed") < fairness_loss(float64(dpd + step), "signed")


@given(DPD)
def test_signed_lets_go_smoothly(dpd: float) -> None:
    """∇L_fair = σ(DPD) ∇DPD (the proof of Proposition 1): never 0, and less the further they are ahead."""
    assert slope(dpd, "signed") == pytest.approx(sigmoid(dpd))


@given(DPD.filter(lambda x: x != 0))
def test_absolute_turns_around_at_0(dpd: float) -> None:
    assert slope(dpd, "absolute") == pytest.approx(math.copysign(sigmoid(abs(dpd)), dpd))


@KINDS
@given(dpd=st.sampled_from([1e4, -1e4, 1e-30, -1e-30, 0.0]) | st.floats(-1e4, 1e4, width=32))
@example(dpd=1e4)
@example(dpd=-1e4)
def test_value_and_gradient_are_finite_far_out(dpd: float, kind: FairnessLoss) -> None:
    x = torch.tensor(dpd, dtype=torch.float32, requires_grad=True)
    loss = fairness_loss(x, kind)
    (grad,) = torch.autograd.grad(loss, x)
    assert loss.isfinite()
    assert loss >= 0
    assert grad.abs() <= 1


@KINDS
@pytest.mark.parametrize("dpd", [-0.9, -0.2, 0.1, 0.7])
def test_gradient_agrees_with_finite_differences(dpd: float, kind: FairnessLoss) -> None:
    assert gradcheck(lambda x: fairness_loss(x, kind), float64(dpd).requires_grad_(), atol=1e-7)
