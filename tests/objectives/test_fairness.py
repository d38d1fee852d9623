"""L_fair and L_fair-abs: the paper's for two groups, their mean over the groups that are there for more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.objectives import Disparity, differentiable_disparity, fairness_loss
from fairstream.objectives.fairness import Kind

DPD = st.floats(-1, 1)
KINDS = pytest.mark.parametrize("kind", ["signed", "absolute"])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def signs_of(n_groups: int, ahead: tuple[int, ...] = (0,)) -> Tensor:
    return torch.tensor([1.0 if code in ahead else -1.0 for code in range(n_groups)])


@dataclass(frozen=True)
class Batch:
    """DH of some interactions and the groups of their users, of which at least two occur."""

    dh: list[float]
    groups: list[int]
    n_groups: int
    ahead: tuple[int, ...] = (0,)

    def loss(self, kind: Kind, **changes: object) -> tuple[float, list[float]]:
        """The library's loss and its gradient by DH."""
        case = Batch(**{**self.__dict__, **changes})
        dh = torch.tensor(case.dh, dtype=torch.float64, requires_grad=True)
        disparity = differentiable_disparity(dh, torch.tensor(case.groups), case.n_groups)
        loss = fairness_loss(disparity, signs_of(case.n_groups, case.ahead), kind)
        (grad,) = torch.autograd.grad(loss, dh)
        return loss.item(), grad.tolist()

    def members(self, *codes: int) -> list[int]:
        return [at for at, code in enumerate(self.groups) if code in codes]


@st.composite
def batches(draw: st.DrawFn, most_groups: int = 5, several_ahead: bool = False) -> Batch:
    n_groups = draw(st.integers(2, most_groups))
    two = draw(st.lists(st.integers(0, n_groups - 1), min_size=2, max_size=2, unique=True))
    codes = draw(st.permutations(two + draw(st.lists(st.integers(-1, n_groups - 1), max_size=8))))
    dh = draw(st.lists(st.floats(0, 1), min_size=len(codes), max_size=len(codes)))
    ahead = draw(st.sets(st.integers(0, n_groups - 1))) if several_ahead else (0,)
    return Batch(dh, codes, n_groups, tuple(ahead))


def papers(batch: Batch, kind: Kind) -> tuple[float, list[float]]:
    """−log σ(−DPD) of two groups, or that of |DPD|, and its gradient σ(DPD) ∇DPD, number by number."""
    ours, theirs = batch.members(0), batch.members(1)
    dpd = math.fsum(batch.dh[at] for at in ours) / len(ours) - math.fsum(batch.dh[at] for at in theirs) / len(theirs)
    x, slope = (dpd, 1.0) if kind == "signed" else (abs(dpd), math.copysign(float(dpd != 0), dpd))
    share = {0: 1 / len(ours), 1: -1 / len(theirs), -1: 0.0}
    return -math.log(sigmoid(-x)), [slope * sigmoid(x) * share[code] for code in batch.groups]


# ── two groups ───────────────────────────────────────────────────────────────────────────


@KINDS
@given(batch=batches(most_groups=2))
def test_of_two_groups_it_is_the_papers_formula(batch: Batch, kind: Kind) -> None:
    loss, grad = batch.loss(kind)
    expected_loss, expected_grad = papers(batch, kind)
    assert loss == pytest.approx(expected_loss, abs=1e-12)
    if kind == "signed" or expected_loss > math.log(2) + 1e-12:  # at the kink rounding decides the side
        assert grad == pytest.approx(expected_grad, abs=1e-12)


@given(batches(most_groups=2))
def test_signed_is_the_default(batch: Batch) -> None:
    disparity = differentiable_disparity(torch.tensor(batch.dh), torch.tensor(batch.groups))
    assert torch.equal(fairness_loss(disparity, signs_of(2)), fairness_loss(disparity, signs_of(2), "signed"))


@given(batches(most_groups=2))
def test_they_agree_while_the_disadvantaged_are_behind_and_part_once_they_are_ahead(batch: Batch) -> None:
    dpd, _ = differentiable_disparity(torch.tensor(batch.dh, dtype=torch.float64), torch.tensor(batch.groups))
    (signed, _), (absolute, _) = batch.loss("signed"), batch.loss("absolute")
    if dpd[0] >= 0:
        assert signed == absolute
    elif dpd[0] < -1e-6:
        assert signed < math.log(2) < absolute


# ── any number of groups ─────────────────────────────────────────────────────────────────


@KINDS
@given(batch=batches(several_ahead=True))
def test_it_is_the_mean_over_the_groups_that_are_there(batch: Batch, kind: Kind) -> None:
    dpd, is_defined = differentiable_disparity(
        torch.tensor(batch.dh, dtype=torch.float64), torch.tensor(batch.groups), batch.n_groups
    )
    terms = []
    for code in set(batch.groups) - {-1}:
        assert is_defined[code]
        signed = dpd[code].item() if code in batch.ahead else -dpd[code].item()
        terms.append(-math.log(sigmoid(-(signed if kind == "signed" else abs(signed)))))
    assert batch.loss(kind)[0] == pytest.approx(sum(terms) / len(terms), abs=1e-12)


@KINDS
@given(batch=batches(several_ahead=True), n_more=st.integers(1, 60))
def test_groups_that_nobody_is_in_change_nothing(batch: Batch, n_more: int, kind: Kind) -> None:
    """Up to rounding: how a sum is rounded depends on how many of them are taken side by side."""
    loss, grad = batch.loss(kind)
    more_loss, more_grad = batch.loss(kind, n_groups=batch.n_groups + n_more)
    assert more_loss == pytest.approx(loss, abs=1e-12)
    if kind == "signed":  # at the kink of the other rounding decides the side
        assert more_grad == pytest.approx(grad, abs=1e-12)


@KINDS
@given(batch=batches(several_ahead=True), other=st.floats(0, 1))
def test_users_of_unknown_group_feel_nothing_and_do_nothing(batch: Batch, other: float, kind: Kind) -> None:
    loss, grad = batch.loss(kind)
    assert all(grad[at] == 0 for at in batch.members(-1))
    changed = [other if code < 0 else x for x, code in zip(batch.dh, batch.groups, strict=True)]
    assert batch.loss(kind, dh=changed) == (loss, grad)


@KINDS
@given(batch=batches(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_disadvantaged_groups_does_not_matter(batch: Batch, random: Random, kind: Kind) -> None:
    code = list(range(1, batch.n_groups))
    random.shuffle(code)
    permuted = [([0, *code, -1])[group] for group in batch.groups]
    loss, grad = batch.loss(kind)
    other_loss, other_grad = batch.loss(kind, groups=permuted)
    assert other_loss == pytest.approx(loss, abs=1e-12)
    if kind == "signed":  # at the kink of the other rounding decides the side
        assert other_grad == pytest.approx(grad, abs=1e-12)


@given(batches(several_ahead=True))
def test_signed_pulls_a_group_that_is_ahead_down_to_the_rest_and_one_that_is_behind_up(batch: Batch) -> None:
    dh, groups = torch.tensor(batch.dh, dtype=torch.float64), torch.tensor(batch.groups)
    dpd, is_defined = differentiable_disparity(dh, groups, batch.n_groups)
    signs = signs_of(batch.n_groups, batch.ahead)
    loss = fairness_loss(Disparity(dpd.requires_grad_(), is_defined), signs)
    (slope,) = torch.autograd.grad(loss, dpd)
    assert slope.sign().tolist() == (signs * is_defined).tolist()


@given(batches())
def test_signed_falls_as_the_advantaged_lose_and_as_all_others_win(batch: Batch) -> None:
    _, grad = batch.loss("signed")
    advantaged = [grad[at] for at in batch.members(0)]
    others = [grad[at] for at in batch.members(*range(1, batch.n_groups))]
    assert all(slope > 0 for slope in advantaged)
    assert sum(advantaged) == pytest.approx(-sum(others), abs=1e-12)  # all together change no disparity


@given(DPD, DPD)
def test_signed_lets_go_smoothly(dpd: float, other: float) -> None:
    """∇L_fair = σ(DPD) ∇DPD (the proof of Proposition 1): never 0, and less the further they are ahead."""
    x = torch.tensor([dpd, other], dtype=torch.float64, requires_grad=True)
    loss = fairness_loss(Disparity(x, torch.tensor([True, True])), signs_of(2))
    (slope,) = torch.autograd.grad(loss, x)
    assert slope.tolist() == pytest.approx([sigmoid(dpd) / 2, -sigmoid(-other) / 2])


@given(DPD.filter(lambda x: x != 0))
def test_absolute_turns_around_at_0(dpd: float) -> None:
    x = torch.tensor([dpd, 0.3], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(fairness_loss(Disparity(x, torch.tensor([True, False])), signs_of(2), "absolute"), x)
    assert slope.tolist() == pytest.approx([math.copysign(sigmoid(abs(dpd)), dpd), 0.0])


# ── numbers ──────────────────────────────────────────────────────────────────────────────


@KINDS
@given(dpd=st.sampled_from([1e4, -1e4, 1e-30, -1e-30, 0.0]) | st.floats(-1e4, 1e4, width=32))
@example(dpd=1e4)
@example(dpd=-1e4)
def test_value_and_gradient_are_finite_far_out(dpd: float, kind: Kind) -> None:
    x = torch.tensor([dpd, -dpd, dpd], dtype=torch.float32, requires_grad=True)
    loss = fairness_loss(Disparity(x, torch.tensor([True, True, False])), signs_of(3), kind)
    (grad,) = torch.autograd.grad(loss, x)
    assert loss.isfinite()
    assert loss >= 0
    assert (grad.abs() <= 1 / 2).all()
    assert grad[2] == 0


@KINDS
def test_gradient_agrees_with_finite_differences(kind: Kind) -> None:
    dpd = torch.tensor([-0.9, -0.2, 0.1, 0.7], dtype=torch.float64, requires_grad=True)
    is_defined = torch.tensor([True, True, False, True])
    assert gradcheck(lambda x: fairness_loss(Disparity(x, is_defined), signs_of(4), kind), dpd, atol=1e-7)
