"""Contenders on the same draws: what they share cancels, and seeds widen what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairstream.evaluation import Estimate, GroupPanel, Paired

N_USERS, N_PERIODS, N_RESAMPLES = 8, 2, 200
CODES = np.array([0, 1] * (N_USERS // 2), np.int16)
values = st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).random((N_USERS, N_PERIODS, 6)))
STATISTICS = ("mean", "by_group", "abs_gap")


def paired(columns: Any, n_seeds: int) -> Paired:
    return Paired(GroupPanel(columns, CODES, 2), n_seeds, N_RESAMPLES)


@settings(max_examples=15)
@given(values, st.sampled_from([1, 2, 3, 6]))
def test_what_is_observed_is_the_mean_over_the_seeds(columns: Any, n_seeds: int) -> None:
    found = paired(columns, n_seeds)
    each = paired(columns, 1)
    for statistic in STATISTICS:
        seen, drawn = found.of(statistic)
        alone = each.of(statistic)[0]
        assert seen == pytest.approx(alone.reshape(*alone.shape[:-1], -1, n_seeds).mean(axis=-1))
        assert drawn.shape == (N_RESAMPLES, *seen.shape)


@settings(max_examples=15)
@given(values)
def test_contenders_that_are_alike_differ_in_no_draw(columns: Any) -> None:
    """Also with seeds that are not alike: every contender sees the same draws of users and of seeds."""
    twice = np.concatenate([columns[:, :, :3], columns[:, :, :3] + 0.25], axis=2)
    _, drawn = paired(twice, 3).of("mean")
    assert drawn[:, 1] - drawn[:, 0] == pytest.approx(np.full(N_RESAMPLES, 0.25))
    assert drawn[:, 0].std() > 0


def test_seeds_that_differ_widen_the_interval_and_seeds_that_agree_do_not() -> None:
    columns = np.random.default_rng(0).random((N_USERS, N_PERIODS, 1))
    agreeing, differing = np.repeat(columns, 3, axis=2), columns + np.array([-0.3, 0.0, 0.3])
    widths = []
    for panel, n_seeds in ((columns, 1), (agreeing, 3), (differing, 3)):
        seen, drawn = paired(panel, n_seeds).of("mean")
        found = Estimate.of_draws(seen[0], drawn[:, 0])
        assert found.value == pytest.approx(columns.mean())
        widths.append(found.high - found.low)
    assert widths[1] == pytest.approx(widths[0])
    assert widths[2] > 1.5 * widths[1]


def test_a_size_is_never_said_to_be_below_zero() -> None:
    assert [Estimate(0.0, bounds).excludes_zero for bounds in ((-1, 1), (0.1, 1), (-1, -0.1), (0, 1))] == [
        False,
        True,
        True,
        False,
    ]


def test_the_interval_of_a_reduction_covers_where_one_side_has_no_disparity_left() -> None:
    """PD .05 against 0: noise makes the smaller |PD| too large, and the reduction too small."""
    rng, codes, covered = np.random.default_rng(0), np.repeat([0, 1], (300, 100)).astype(np.int16), 0
    for _ in range(60):
        user = rng.beta(1.0, 3.0, (400, 3, 1)) + rng.normal(0, 0.1, (400, 3, 2))
        columns = user - np.array([0.05, 0.0]) * codes[:, None, None]
        difference = Paired(GroupPanel(columns, codes, 2), 1, N_RESAMPLES).furthest_behind(0, minus=1)
        covered += difference.low <= 0.05 <= difference.high
        assert difference.low < difference.value < difference.high
    assert covered >= 54


def test_a_large_gap_is_not_widened_for_a_bias_that_it_does_not_have() -> None:
    rng, codes = np.random.default_rng(0), np.repeat([0, 1], (300, 100)).astype(np.int16)
    columns = rng.normal(0, 0.1, (400, 2, 2)) + np.array([0.9, 0.6]) * codes[:, None, None]
    found = Paired(GroupPanel(columns, codes, 2), 1, N_RESAMPLES)
    value, drawn = found.of("gap")
    plain = Estimate.of_draws(value[1, 0] - value[1, 1], drawn[:, 1, 0] - drawn[:, 1, 1])
    difference = found.furthest_behind(0, minus=1)
    assert (difference.low, difference.high) == pytest.approx((plain.low, plain.high), abs=2e-4)
