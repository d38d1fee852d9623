"""Theorems 1 and 2 as numbers, and Proposition 1 on random models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.errors import ConfigurationError
from fairstream.objectives import DisparityLoss, Objective, bpr_loss, differentiable_disparity, positive_hit
from fairstream.paper.theory import (
    excess_loss_bound,
    fine_tuning_weights,
    retraining_weights,
    sufficient_fairness_weight,
)

GAMMA = st.floats(0.01, 0.99)
N_PERIODS = st.integers(1, 30)
SIZE = st.integers(2, 10**6)
SHIFT = st.floats(0, 10)


def sizes_of(n_periods: int, m0: float, m1: float) -> list[float]:
    """The paper's sizes: m_0 before the first period, m_1 in each of the others."""
    return [m0] + [m1] * (n_periods - 1)


def error_of(sum_of_squares: float, delta: float) -> float:
    return 4 * math.sqrt(sum_of_squares * math.log(2 / delta))


# ── the weights ──────────────────────────────────────────────────────────────────────────────


@given(N_PERIODS, GAMMA)
def test_fine_tuning_weights_are_a_distribution(n_periods: int, gamma: float) -> None:
    weights = fine_tuning_weights(n_periods, gamma)
    assert weights.shape == (n_periods,)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)


@given(st.lists(SIZE, min_size=1, max_size=20))
def test_retraining_weights_are_a_distribution_in_proportion_to_the_sizes(sizes: list[int]) -> None:
    weights = retraining_weights(sizes)
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(weights * sizes[0], weights[0] * np.array(sizes))


@given(N_PERIODS, GAMMA)
def test_fine_tuning_weights_unroll_the_proximal_assumption(n_periods: int, gamma: float) -> None:
    """ℓ_0 = L_0 and ℓ_t = (1 − γ) L_t + γ ℓ_{t−1}; ℓ as its coefficients on L_0 … L_{T−1}."""
    basis = np.eye(n_periods)
    ell = basis[0]
    for t in range(1, n_periods):
        ell = (1 - gamma) * basis[t] + gamma * ell
    np.testing.assert_allclose(fine_tuning_weights(n_periods, gamma), ell, rtol=1e-9)


# ── the bound ────────────────────────────────────────────────────────────────────────────────


@given(st.lists(SHIFT, min_size=1, max_size=12), SIZE, SIZE)
def test_retraining_shift_is_theorem_2s(shifts: list[float], m0: int, m1: int) -> None:
    n = len(shifts)
    sizes = sizes_of(n, m0, m1)
    closed = (2 * m0 * shifts[0] + 2 * sum(m1 * d for d in shifts[1:])) / (m0 + (n - 1) * m1)
    assert excess_loss_bound(retraining_weights(sizes), sizes, shifts).shift == pytest.approx(closed)


@given(st.lists(SHIFT, min_size=1, max_size=12), SIZE)
def test_retraining_on_equal_sizes_shifts_by_twice_the_mean(shifts: list[float], m: int) -> None:
    sizes = [m] * len(shifts)
    found = excess_loss_bound(retraining_weights(sizes), sizes, shifts).shift
    assert found == pytest.approx(2 * sum(shifts) / len(shifts))


@given(N_PERIODS, SIZE, SIZE, st.floats(0.001, 0.5))
def test_retraining_error_is_at_most_theorem_2s_and_equal_for_equal_sizes(
    n_periods: int, m: int, other: int, delta: float
) -> None:
    m0, m1 = max(m, other), min(m, other)
    for first, rest in ((m0, m1), (m0, m0)):
        sizes = sizes_of(n_periods, first, rest)
        found = excess_loss_bound(retraining_weights(sizes), sizes, [0.0] * n_periods, delta=delta).learning_error
        closed = error_of(math.log(first) / (first + (n_periods - 1) * rest), delta)
        assert found <= closed * (1 + 1e-9)
        if first == rest:
            assert found == pytest.approx(closed)


@given(st.lists(SHIFT, min_size=1, max_size=12), GAMMA)
def test_fine_tuning_shift_is_theorem_1s(shifts: list[float], gamma: float) -> None:
    n = len(shifts)
    closed = 2 * gamma ** (n - 1) * shifts[0]
    closed += 2 * sum((1 - gamma) * gamma ** (n - t - 1) * shifts[t] for t in range(1, n))
    assert excess_loss_bound(fine_tuning_weights(n, gamma), [100] * n, shifts).shift == pytest.approx(closed)


@given(N_PERIODS, GAMMA, SIZE, SIZE, st.floats(0.001, 0.5))
def test_fine_tuning_error_is_the_exact_sum(n_periods: int, gamma: float, m0: int, m1: int, delta: float) -> None:
    """Σ_{t ≥ 1} α_t² = (1 − γ)(1 − γ^{2T−2}) / (1 + γ)."""
    alpha = fine_tuning_weights(n_periods, gamma)
    later = (1 - gamma) * (1 - gamma ** (2 * n_periods - 2)) / (1 + gamma)
    assert (alpha[1:] ** 2).sum() == pytest.approx(later)
    squares = gamma ** (2 * n_periods - 2) * math.log(m0) / m0 + later * math.log(m1) / m1
    found = excess_loss_bound(alpha, sizes_of(n_periods, m0, m1), [0.0] * n_periods, delta=delta)
    assert found.shift == 0
    assert found.learning_error == pytest.approx(error_of(squares, delta))


@given(st.integers(2, 12), GAMMA)
def test_the_printed_closed_form_is_not_that_sum(n_periods: int, gamma: float) -> None:
    printed = (1 + gamma) * (1 - gamma ** (2 * n_periods - 4)) / (1 - gamma)
    true = float((fine_tuning_weights(n_periods, gamma)[1:] ** 2).sum())
    if n_periods == 2:
        assert printed == 0  # although D_1 has the weight 1 − γ
        assert true == pytest.approx((1 - gamma) ** 2)
    else:
        assert printed > true * (1 + 1e-6)


@given(st.lists(SHIFT, min_size=1, max_size=12), GAMMA, st.floats(0.001, 0.4))
def test_the_bound_is_the_sum_of_its_parts_and_more_certainty_costs_more(
    shifts: list[float], gamma: float, delta: float
) -> None:
    n = len(shifts)
    weights = fine_tuning_weights(n, gamma)
    found, surer = (excess_loss_bound(weights, [50] * n, shifts, delta=d) for d in (delta, delta / 2))
    assert found.total == found.shift + found.learning_error
    assert surer.learning_error > found.learning_error
    assert surer.shift == found.shift


# ── what the paper reads off the two theorems ────────────────────────────────────────────────


@given(st.floats(0.1, 0.9), st.integers(50, 1000), st.integers(20, 100))
def test_with_time_fine_tuning_learns_worse_than_retraining(gamma: float, m1: int, ratio: int) -> None:
    """m_1 ≪ m_0: one period with its small size weighs at least 1 − γ for ever, a retrained one fades."""
    m0 = ratio * m1
    last = 1000
    worse = []
    for n_periods in (10, 100, last):
        sizes, none = sizes_of(n_periods, m0, m1), [0.0] * n_periods
        tuned = excess_loss_bound(fine_tuning_weights(n_periods, gamma), sizes, none).learning_error
        retrained = excess_loss_bound(retraining_weights(sizes), sizes, none).learning_error
        worse.append(tuned > retrained)
    assert worse[-1]
    assert worse == sorted(worse)  # once worse, worse from then on
    limit = error_of((1 - gamma) / (1 + gamma) * math.log(m1) / m1, 0.05)
    assert tuned == pytest.approx(limit, rel=1e-6)


@given(GAMMA, SIZE, SIZE, st.lists(st.floats(0.001, 1), min_size=2, max_size=20))
def test_fine_tuning_shifts_less_where_older_data_is_further_away(
    gamma: float, m0: int, m1: int, steps: list[float]
) -> None:
    n = len(steps)
    sizes = sizes_of(n, m0, m1)
    assume(fine_tuning_weights(n, gamma)[0] < 0.99 * retraining_weights(sizes)[0])  # D_0 has faded more
    shifts = np.cumsum(steps)[::-1]  # d_t grows with the distance T − t
    tuned = excess_loss_bound(fine_tuning_weights(n, gamma), sizes, shifts)
    retrained = excess_loss_bound(retraining_weights(sizes), sizes, shifts)
    assert tuned.shift < retrained.shift


@pytest.mark.parametrize(
    ("compute", "sentence"),
    [
        (lambda: excess_loss_bound([0.5, 0.5], [10], [0.1, 0.1]), "a weight, a size and a shift, got 2, 1 and 2"),
        (lambda: excess_loss_bound([0.5, 0.4], [10, 10], [0.1, 0.1]), "sum to 1, got a sum of 0.9"),
        (lambda: excess_loss_bound([1.5, -0.5], [10, 10], [0.1, 0.1]), "must be 0 or more"),
        (lambda: excess_loss_bound([1.0], [1], [0.1]), "at least 2 events"),
        (lambda: excess_loss_bound([1.0], [10], [-0.1]), "a shift of 0 or more"),
        (lambda: excess_loss_bound([1.0], [10], [0.1], delta=1.0), "delta must be between 0 and 1"),
        (lambda: excess_loss_bound([1.0], [10], [0.1], scale=-1.0), "scale 0 or more"),
        (lambda: fine_tuning_weights(2, 1.0), "gamma, .* between 0 and 1, got 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(compute: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        compute()


# ── Proposition 1 ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Instance:
    """A small factorisation, a batch for it, and the group of each of its users."""

    w: Tensor  # p (6, 3) and q (9, 3), flat
    users: Tensor
    items: Tensor  # (B, 1 + max(n, μ))
    groups: Tensor  # (B,)

    n = 2
    mu = 3
    tau = 1.0

    @classmethod
    def random(cls, seed: int) -> Instance:
        generator = torch.Generator().manual_seed(seed)
        of_user = torch.tensor([0, 1, 0, 1, 0, -1])
        users = torch.cat([torch.tensor([0, 1]), torch.randint(6, (10,), generator=generator)])
        items = torch.stack([torch.randperm(9, generator=generator)[:4] for _ in users])
        w = torch.randn(45, dtype=torch.float64, generator=generator)
        return cls(w, users, items, of_user[users])

    def swapped(self) -> Instance:
        return replace(self, groups=torch.where(self.groups < 0, self.groups, 1 - self.groups))

    def scores(self, w: Tensor) -> Tensor:
        p, q = w[:18].reshape(6, 3), w[18:].reshape(9, 3)
        return torch.einsum("bd,bcd->bc", p[self.users], q[self.items])

    def l_rec(self, w: Tensor) -> Tensor:
        return bpr_loss(self.scores(w)[:, : 1 + self.n])

    def dpd(self, w: Tensor) -> Tensor:
        dh = positive_hit(self.scores(w)[:, : 1 + self.mu], tau=self.tau)
        return differentiable_disparity(dh, self.groups).dpd[0]

    def total(self, w: Tensor, lambda_: float) -> Tensor:
        objective = Objective(lambda_=lambda_, n=self.n, mu=self.mu, fairness=DisparityLoss(temperature=self.tau))
        return objective(self.scores(w), self.groups, torch.tensor([1.0, -1.0]), has_two_groups=True)


def gradient(loss: Tensor, w: Tensor) -> np.ndarray:
    return torch.autograd.grad(loss, w)[0].numpy()


@given(st.integers(0, 10**6))
def test_with_the_sufficient_weight_a_small_step_moves_dpd_towards_0(seed: int) -> None:
    instance = Instance.random(seed)
    w = instance.w.clone().requires_grad_()
    if gradient(instance.l_rec(w), w) @ gradient(instance.dpd(w), w) > 0:
        instance = instance.swapped()  # negates DPD: now L_rec causes unfairness
    grad_rec, grad_dpd = gradient(instance.l_rec(w), w), gradient(instance.dpd(w), w)
    pull = grad_rec @ grad_dpd
    assert pull <= 0
    lambda_ = sufficient_fairness_weight(grad_rec, grad_dpd)
    assert lambda_ >= 0

    step = -gradient(instance.total(w, lambda_), w)
    slope = step @ grad_dpd  # lim (DPD(w + η step) − DPD(w)) / η
    dpd = instance.dpd(w).item()
    scale = np.linalg.norm(grad_rec) * np.linalg.norm(grad_dpd)
    assert math.copysign(1, dpd) * slope <= 1e-12 * scale
    assert slope == pytest.approx((1 - 2 / (1 + math.exp(-dpd))) * -pull, abs=1e-12 * scale)  # the proof's last line

    assume(abs(slope) > 1e-4 * scale)  # else the second order has a say in a step of this size
    eta = 1e-6
    moved = instance.dpd(instance.w + eta * torch.from_numpy(step)).item()
    assert (moved - dpd) / eta == pytest.approx(slope, rel=0.2)
    assert abs(moved) < abs(dpd)


@given(st.integers(0, 10**6))
def test_without_it_l_rec_goes_on_favouring_the_group_that_it_favours(seed: int) -> None:
    instance = Instance.random(seed)
    w = instance.w.clone().requires_grad_()
    if gradient(instance.l_rec(w), w) @ gradient(instance.dpd(w), w) > 0:
        instance = instance.swapped()
    step, grad_dpd = -gradient(instance.total(w, 0.0), w), gradient(instance.dpd(w), w)
    assert step @ grad_dpd >= 0


@given(st.integers(1, 20), st.integers(0, 10**6))
def test_the_sufficient_weight_has_the_sign_and_the_scale_of_the_conflict(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    grad_rec, grad_dpd = rng.normal(size=size), rng.normal(size=size)
    lambda_ = sufficient_fairness_weight(grad_rec, grad_dpd)
    assert (lambda_ >= 0) == (grad_rec @ grad_dpd <= 0)
    assert sufficient_fairness_weight(3 * grad_rec, grad_dpd) == pytest.approx(3 * lambda_)
    # where DPD = 0, σ = ½: the weighted L_fair undoes exactly what L_rec does to DPD
    assert (grad_rec + lambda_ / 2 * grad_dpd) @ grad_dpd == pytest.approx(0, abs=1e-9)
