"""Tests that stay valid under peeking: false positives at every look together, power, and the sums they need."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks import peeking as cases
from benchmarks.peeking import peeking
from hypothesis import given
from hypothesis import strategies as st

from fairstream import ArmTotals, ConfigurationError, sequential_test, win_rate_test


def test_the_interval_is_that_of_the_equation() -> None:
    rng = np.random.default_rng(1)
    (ya, xa), (yb, xb) = ((rng.binomial(x, 0.2), x) for x in (rng.integers(1, 9, 400), rng.integers(1, 9, 300)))
    rates = ya.sum() / xa.sum(), yb.sum() / xb.sum()
    weight = xa.sum() * xb.sum() / (xa.sum() + xb.sum())
    variance = 0.0
    for y, x, rate in ((ya, xa, rates[0]), (yb, xb, rates[1])):
        variance += np.var(y - rate * x, ddof=1) * len(y) / x.sum() ** 2
    variance *= weight**2
    result = sequential_test(ArmTotals.of(ya, xa), ArmTotals.of(yb, xb), alpha=0.1, n_tests=2, scale=50.0)
    assert result is not None
    radius = math.sqrt((variance + 50) * math.log((variance + 50) / (50 * 0.05**2))) / weight
    difference = rates[1] - rates[0]
    np.testing.assert_allclose(result.interval, (difference - radius, difference + radius))


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.05, 0.2])
def test_the_e_value_reaches_one_over_alpha_where_the_interval_leaves_zero(shift: float) -> None:
    rng = np.random.default_rng(2)
    a, b = (ArmTotals.of(rng.binomial(5, rate, 2000), np.full(2000, 5)) for rate in (0.2, 0.2 + shift))
    result = sequential_test(a, b)
    assert result is not None
    assert (result.e_value >= 20) == (result.is_better or result.is_worse)


def test_nothing_is_said_before_the_minimum_sample() -> None:
    enough = ArmTotals.of(np.r_[np.ones(30), np.zeros(100)])
    assert sequential_test(enough, enough) is not None
    assert sequential_test(enough, ArmTotals()) is None
    assert sequential_test(enough, ArmTotals.of(np.ones(99))) is None
    few = ArmTotals.of(np.r_[np.ones(9), np.zeros(121)])
    assert sequential_test(few, enough) is None
    assert (
        sequential_test(enough, ArmTotals.of(np.r_[np.full(1, 500.0), np.ones(300)])) is None
    )  # one user is most of it


def test_an_arm_without_any_outcome_is_found_to_be_worse() -> None:
    result = sequential_test(ArmTotals.of(np.r_[np.ones(60), np.zeros(240)]), ArmTotals.of(np.zeros(300)))
    assert result is not None
    assert result.is_worse


def test_users_who_all_do_the_same_decide_nothing() -> None:
    everybody = ArmTotals.of(np.ones(500))
    assert sequential_test(everybody, everybody) is None


def test_a_tolerated_loss_is_not_found_and_a_larger_one_is() -> None:
    rng = np.random.default_rng(3)
    a, b = (ArmTotals.of(rng.binomial(20, rate, 9000), np.full(9000, 20)) for rate in (0.20, 0.18))
    for ratio, is_worse in ((1.0, True), (0.95, True), (0.85, False)):
        result = sequential_test(a, b, ratio=ratio)
        assert result is not None
        assert result.is_worse is is_worse


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 1.0}, {"n_tests": 0}, {"ratio": 0.0}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=r"alpha must be between 0 and 1"):
        sequential_test(ArmTotals(), ArmTotals(), **options)  # type: ignore[arg-type]


def test_wins_and_losses_change_places() -> None:
    one, other = win_rate_test(70, 30), win_rate_test(30, 70)
    assert one.is_better
    assert other.is_worse
    np.testing.assert_allclose(one.interval, [-end for end in reversed(other.interval)], atol=1e-9)
    nothing = win_rate_test(0, 0)
    assert (nothing.difference, nothing.interval, nothing.e_value) == (0.0, (-1.0, 1.0), 1.0)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_win_rates_e_value_and_interval_agree(wins: int, losses: int) -> None:
    result = win_rate_test(wins, losses)
    assert (result.e_value > 20) == (result.is_better or result.is_worse) or result.e_value == pytest.approx(20)
    assert result.interval[0] <= result.difference <= result.interval[1]


def test_the_win_rates_mixture_is_fair_at_every_number_of_trials() -> None:
    """The e-value is a martingale: its mean over the next trial, at 1/2, is its value now."""
    for wins, losses in ((0, 0), (3, 9), (40, 41)):
        following = (win_rate_test(wins + 1, losses).e_value, win_rate_test(wins, losses + 1).e_value)
        assert sum(following) / 2 == pytest.approx(win_rate_test(wins, losses).e_value)


def test_a_look_after_every_event_sees_the_same_totals() -> None:
    """The simulation's running sums equal the totals of each user, at the first look that shows a difference."""
    rng = np.random.default_rng(4)
    users, x = rng.integers(0, 400, 4000), rng.integers(1, 4, 4000).astype(float)
    arms = rng.integers(0, 2, 400)[users]
    y = rng.binomial(1, np.where(arms == 1, 0.4, 0.2)).astype(float)
    first = int(peeking(lambda _: (users, arms, x, y), n_runs=1)[0])
    scale, shown = None, []
    for n in range(1, first + 1):
        totals = []
        for arm in (0, 1):
            own = arms[:n] == arm
            sums = [np.bincount(users[:n][own], part[:n][own], minlength=400) for part in (y, x)]
            totals.append(ArmTotals.of(*(part[sums[1] > 0] for part in sums)))
        if (result := sequential_test(totals[0], totals[1], scale=scale)) is not None:
            scale = result.scale
            shown.append(result.is_better or result.is_worse)
    assert shown[-1]
    assert not any(shown[:-1])


@pytest.mark.parametrize("name", ["10 % of users click", "returning users", "counts with a heavy tail"])
def test_false_positives_stay_rare_although_every_event_is_looked_at(name: str) -> None:
    rate = float(np.isfinite(peeking(cases.null(name, n=2000), n_runs=200)).mean())
    assert rate <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", list(cases.NULLS))
def test_false_positives_under_continuous_peeking(name: str) -> None:
    """1,000 runs: at a true rate of 5 % more than 6.6 % would be chance in one of a hundred cases."""
    assert np.isfinite(peeking(cases.null(name), n_runs=1000)).mean() <= 0.05


@pytest.mark.slow
def test_false_positives_of_all_groups_together() -> None:
    assert cases.groups_false_positives(n_runs=500) <= 0.05


@pytest.mark.slow
def test_false_positives_of_win_rates() -> None:
    assert cases.win_rate_false_positives(n_runs=300) <= 0.05


def test_real_effects_are_found() -> None:
    assert np.isfinite(peeking(cases.effect(0.2), n_runs=20)).mean() >= 0.9
