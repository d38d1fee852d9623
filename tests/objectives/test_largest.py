"""The largest gap: pushes that do not cancel, and for two groups |DPD| with a round bottom."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.errors import ConfigurationError
from fairstream.objectives.fairness import (
    Disparity,
    LargestGapLoss,
    differentiable_disparity,
    fairness_loss,
    largest_gap_loss,
)

QUALITY = st.lists(st.floats(0, 1), min_size=2, max_size=6)


def of_groups(means: list[float], kind: str, softness: float = 0.02) -> tuple[float, list[float]]:
    """A loss of groups of one interaction each, and how it pushes each of them (down its gradient)."""
    quality = torch.tensor(means, dtype=torch.float64, requires_grad=True)
    disparity = differentiable_disparity(quality, torch.arange(len(means)), len(means))
    signs = torch.tensor([1.0, *[-1.0] * (len(means) - 1)], dtype=torch.float64)
    loss = largest_gap_loss(disparity, softness) if kind == "largest" else fairness_loss(disparity, signs, kind)
    (slope,) = torch.autograd.grad(loss, quality)
    return loss.item(), (-slope).tolist()


def test_signed_pushes_cancel_for_the_worst_of_many_groups_and_the_largest_gap_does_not() -> None:
    """Twenty groups, one ahead of the rest by declaration, the last far behind in truth.

    "signed" pushes each of nineteen groups up by about ½ / 20, and each of them is nearly a nineteenth
    of the rest that the others are pushed against: what is left is about 1 / (20 · 19) for any of them.
    """
    means = [0.5] * 19 + [0.3]
    signed, largest = (of_groups(means, kind)[1] for kind in ("signed", "largest"))
    assert abs(signed[-1]) < 0.01
    assert max(map(abs, signed[1:-1])) < 0.01
    assert signed[0] < -0.04  # a pull on the declared one is all there is
    assert largest[-1] > 0.99
    assert max(largest[:-1]) < 0


def test_signed_lifts_a_group_that_is_ahead_and_the_largest_gap_never_does() -> None:
    means = [0.4, 0.9, 0.2]  # the second is ahead, though not declared so
    assert of_groups(means, "signed")[1][1] > 0
    assert of_groups(means, "largest")[1][1] < 0


@given(QUALITY)
def test_the_worst_group_is_never_pushed_down_nor_the_best_up(means: list[float]) -> None:
    _, push = of_groups(means, "largest")
    worst, best = means.index(min(means)), means.index(max(means))
    assert push[worst] >= -1e-9
    assert push[best] <= 1e-9
    assert sum(push) == pytest.approx(0, abs=1e-9)  # all together change no gap


@given(QUALITY, st.randoms(use_true_random=False))
def test_the_order_of_the_groups_does_not_matter(means: list[float], random: object) -> None:
    order = list(range(len(means)))
    random.shuffle(order)  # type: ignore[attr-defined]
    loss, push = of_groups(means, "largest")
    other_loss, other_push = of_groups([means[at] for at in order], "largest")
    assert other_loss == pytest.approx(loss, abs=1e-9)
    assert other_push == pytest.approx([push[at] for at in order], abs=1e-9)


@given(QUALITY)
def test_as_the_softness_goes_to_0_it_becomes_the_largest_gap(means: list[float]) -> None:
    rest = [(sum(means) - x) / (len(means) - 1) for x in means]
    largest = max(other - x for x, other in zip(means, rest, strict=True))
    softness = 1e-4
    loss, _ = of_groups(means, "largest", softness)
    assert largest - softness * math.log(len(means)) - 1e-9 <= loss <= largest + 1e-9


@given(st.floats(0, 1), st.floats(0, 1))
def test_of_two_groups_it_is_the_size_of_dpd_with_a_round_bottom(one: float, other: float) -> None:
    dpd, t = one - other, 0.02
    loss, push = of_groups([one, other], "largest", t)
    size = abs(dpd) / t
    assert loss == pytest.approx(t * (size + math.log1p(math.exp(-2 * size)) - math.log(2)), abs=1e-9)  # T log cosh
    assert push == pytest.approx([-math.tanh(dpd / t), math.tanh(dpd / t)], abs=1e-9)


def test_groups_that_are_not_there_have_no_part() -> None:
    dpd = torch.tensor([0.1, -0.1, -9.0], dtype=torch.float64, requires_grad=True)
    loss = largest_gap_loss(Disparity(dpd, torch.tensor([True, True, False])), 0.05)
    two = largest_gap_loss(Disparity(dpd[:2], torch.tensor([True, True])), 0.05)
    assert loss.item() == pytest.approx(two.item())
    assert torch.autograd.grad(loss, dpd)[0][2] == 0


def test_its_gradient_agrees_with_finite_differences() -> None:
    dpd = torch.tensor([0.2, -0.1, 0.05, -0.12], dtype=torch.float64, requires_grad=True)
    is_defined = torch.tensor([True, True, False, True])
    assert gradcheck(lambda x: largest_gap_loss(Disparity(x, is_defined), 0.05), dpd, atol=1e-7)


def test_the_weights_come_from_all_batches_and_the_gradient_from_this_one() -> None:
    """A batch in which a good group happens to look worst pushes by what is known of the groups, not by itself."""

    def pushes(loss: LargestGapLoss) -> Tensor:
        scores = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
        loss(scores, torch.tensor([0, 1, 2]), torch.tensor([1.0, -1.0, -1.0])).backward()
        assert scores.grad is not None
        return -scores.grad[:, 0]

    loss = LargestGapLoss("log-likelihood").start(3, torch.device("cpu"))
    for _ in range(30):
        usual = torch.tensor([[2.0, 0.0], [2.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
        loss(usual, torch.tensor([0, 1, 2]), torch.tensor([1.0, -1.0, -1.0]))
    by_all, alone = pushes(loss), pushes(LargestGapLoss("log-likelihood"))
    assert by_all[2] > 0 > by_all[1]
    assert alone[1] > 0 > alone[2]


def test_it_has_a_softness_above_0() -> None:
    with pytest.raises(ConfigurationError, match=r"softness must be > 0, got 0.0"):
        LargestGapLoss(softness=0.0)
