"""From users' values to groups' means to gaps, and what is said of their uncertainty."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairstream.evaluation import Estimate, GroupPanel, GroupScores, by_group, group_statistics

NAMES = ("majority", "minority", "few", "fewer")
Users = list[tuple[int, float]]
"""(group, value) of each."""


@st.composite
def some_users(draw: st.DrawFn) -> tuple[Users, int]:
    """Values of some users, in any order, of up to four groups, which may be unknown or empty."""
    n_groups = draw(st.integers(0, 4))
    user = st.tuples(st.integers(-1, n_groups - 1), st.floats(0, 1, width=32))
    return draw(st.lists(user, max_size=14)), n_groups


def panel_of(users: Users, n_groups: int, min_size: int = 1) -> GroupPanel:
    codes, values = [code for code, _ in users], [value for _, value in users]
    table = np.array(values, dtype=np.float64).reshape(-1, 1, 1)
    return GroupPanel(table, np.array(codes, dtype=np.int16), n_groups, min_size)


def scores_of(users: Users, n_groups: int = 2, min_size: int = 1, n_resamples: int = 0) -> GroupScores:
    panel = panel_of(users, n_groups, min_size)
    (scores,) = group_statistics(panel, NAMES[:n_groups], np.random.default_rng(0), n_resamples)
    return scores


def naive_mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def same(found: float | None, expected: float | None) -> bool:
    return found is expected is None or found == pytest.approx(expected, abs=1e-12)


@given(some_users(), st.integers(1, 3))
def test_the_means_and_the_gaps_are_what_they_say(data: tuple[Users, int], min_size: int) -> None:
    users, n_groups = data
    scores = scores_of(users, n_groups, min_size)
    of = {code: [value for group, value in users if group == code] for code in range(n_groups)}
    judged = {code: values for code, values in of.items() if len(values) >= min_size}
    assert same(scores.overall, naive_mean([value for _, value in users]))
    assert list(scores.by_group) == list(NAMES[:n_groups])
    for code, name in enumerate(NAMES[:n_groups]):
        assert same(scores.by_group[name], naive_mean(judged.get(code, [])))
    gaps = {
        NAMES[code]: naive_mean(values) - naive_mean([v for other in judged if other != code for v in judged[other]])
        for code, values in judged.items()
        if len(judged) > 1
    }
    assert {name: gap.value for name, gap in scores.gaps.items()} == pytest.approx(gaps, abs=1e-12)
    assert same(scores.performance_disparity, gaps.get("majority"))
    assert same(scores.abs_performance_disparity, abs(gaps["majority"]) if "majority" in gaps else None)
    if gaps:
        heights = [naive_mean(values) for values in judged.values()]
        assert scores.spread.value == pytest.approx(max(heights) - min(heights), abs=1e-12)
        assert scores.largest_gap.value == pytest.approx(max(abs(gap) for gap in gaps.values()), abs=1e-12)
        assert abs(scores.gaps[scores.largest_gap_group].value) == scores.largest_gap.value
    else:
        assert (scores.spread, scores.largest_gap, scores.largest_gap_group, scores.disparity) == (
            None,
            None,
            None,
            None,
        )
    assert scores.ahead == [name for name, gap in scores.gaps.items() if gap.value > 0]


@given(some_users())
def test_without_resampling_nothing_is_said_of_uncertainty(data: tuple[Users, int]) -> None:
    scores = scores_of(*data)
    assert scores.interval is None
    for estimate in (*scores.gaps.values(), scores.largest_gap, scores.spread, scores.disparity):
        assert estimate is None or (estimate.interval, estimate.p_value, estimate.chance) == (None, None, None)
        assert estimate is None or not estimate.may_be_chance
    panel = panel_of(*data)
    assert group_statistics(panel, NAMES[: data[1]], None, 100) == [scores]


@given(some_users())
def test_resampling_adds_to_the_numbers_and_changes_none(data: tuple[Users, int]) -> None:
    plain, resampled = scores_of(*data), scores_of(*data, n_resamples=20)

    def bare(estimate: Estimate | None) -> Estimate | None:
        return None if estimate is None else Estimate(estimate.value)

    assert plain == replace(
        resampled,
        interval=None,
        gaps={name: bare(gap) for name, gap in resampled.gaps.items()},
        largest_gap=bare(resampled.largest_gap),
        spread=bare(resampled.spread),
        disparity=bare(resampled.disparity),
        abs_null_mean=None,
    )
    assert (resampled.interval is None) == (not data[0])
    if len(resampled.by_group) == 2 and resampled.disparity is not None:  # one period: |PD| is the size of PD
        assert resampled.abs_null_mean == pytest.approx(resampled.disparity.chance)
    for gap in resampled.gaps.values():
        assert gap.interval is not None
        assert 0 < gap.p_value <= 1


@given(some_users())
def test_swapping_two_groups_changes_the_sign_and_nothing_else(data: tuple[Users, int]) -> None:
    users = [(min(code, 1), value) for code, value in data[0]]
    scores, swapped = scores_of(users), scores_of([({0: 1, 1: 0}.get(code, -1), value) for code, value in users])
    assert swapped.overall == pytest.approx(scores.overall)
    assert same(swapped.by_group["majority"], scores.by_group["minority"])
    assert same(swapped.abs_performance_disparity, scores.abs_performance_disparity)
    if scores.performance_disparity is not None:
        assert swapped.performance_disparity == pytest.approx(-scores.performance_disparity, abs=1e-12)


@given(some_users(), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_users_of_unknown_group_count_in_the_overall_value_alone(data: tuple[Users, int], more: list[float]) -> None:
    users, n_groups = data
    scores, joined = scores_of(users, n_groups), scores_of([*users, *((-1, value) for value in more)], n_groups)
    assert joined.by_group == scores.by_group
    assert joined.gaps == scores.gaps
    assert same(joined.overall, naive_mean([value for _, value in users] + more))


@given(some_users(), st.integers(5, 60))
def test_the_largest_gap_is_judged_more_strictly_than_the_gap_that_it_is(data: tuple[Users, int], n: int) -> None:
    """Because one of several gaps is large more often than a certain one is."""
    scores = scores_of(*data, n_resamples=n)
    assume(scores.gaps)
    assert scores.largest_gap.p_value >= scores.gaps[scores.largest_gap_group].p_value
    assert scores.largest_gap.chance >= scores.gaps[scores.largest_gap_group].chance - 1e-12


def test_for_several_groups_the_largest_of_gaps_that_are_not_there_is_rarely_found() -> None:
    """Eight equal groups: one of eight gaps is below 0.05 often, the largest as rarely as it says."""
    rng, names, n = np.random.default_rng(0), "abcdefgh", 300
    values = np.where(rng.random((160, 1, n)) < 0.6, 0.0, rng.beta(1.2, 2.5, (160, 1, n)))
    found = group_statistics(GroupPanel(values, np.repeat(np.arange(8), 20).astype(np.int16), 8), names, rng, 399)
    share = sum(not scores.largest_gap.may_be_chance for scores in found) / n
    of_any = sum(any(not gap.may_be_chance for gap in scores.gaps.values()) for scores in found) / n
    assert share < 0.1 < of_any


def test_advantaged_minus_disadvantaged() -> None:
    assert scores_of([(0, 1.0), (1, 0.25), (1, 0.25)]).performance_disparity == 0.75
    assert scores_of([(0, 0.0), (1, 0.25), (1, 0.25)]).performance_disparity == -0.25


def test_of_equally_far_groups_the_first_is_named() -> None:
    assert scores_of([(0, 0.0), (1, 1.0)]).largest_gap_group == "majority"
    assert scores_of([(0, 0.5), (1, 0.5), (2, 1.0), (3, 0.0)], 4).largest_gap_group == "few"


def test_a_group_that_nobody_was_tested_of_has_no_value_and_leaves_no_gap() -> None:
    nothing = GroupScores(None, None, {"majority": None, "minority": None}, {}, None, None, None, None, None, None)
    assert scores_of([(0, 0.5), (0, 1.0)]) == replace(
        nothing, overall=0.75, by_group={"majority": 0.75, "minority": None}
    )
    assert scores_of([]) == scores_of([], n_resamples=5) == nothing


def test_where_nobodys_group_is_known_there_is_an_overall_value_and_no_more() -> None:
    (scores,) = group_statistics(panel_of([(-1, 0.5), (-1, 1.0)], n_groups=0), ())
    assert scores == GroupScores(0.75, None, {}, {}, None, None, None, None, None, None)


@pytest.mark.parametrize(("p_value", "may_be"), [(None, False), (0.001, False), (0.05, True), (0.3, True), (1.0, True)])
def test_what_cannot_be_told_from_chance(p_value: float | None, may_be: bool) -> None:
    assert Estimate(0.1, p_value=p_value).may_be_chance is may_be


@given(some_users(), st.sampled_from([0, 10]))
def test_the_dictionary_says_the_same_as_json(data: tuple[Users, int], n_resamples: int) -> None:
    scores = scores_of(*data, n_resamples=n_resamples)
    document = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert document["overall"] == scores.overall
    assert document["by_group"] == scores.by_group
    assert document["performance_disparity"] == scores.performance_disparity
    assert document["abs_performance_disparity"] == scores.abs_performance_disparity
    assert document["gaps"] == {name: _as_json(gap) for name, gap in scores.gaps.items()}
    assert document["disparity"] == _as_json(scores.disparity)
    assert document["spread"] == _as_json(scores.spread)
    largest = document["largest_gap"]
    assert largest == (scores.largest_gap and {"group": scores.largest_gap_group, **_as_json(scores.largest_gap)})
    assert document["interval"] == (scores.interval and list(scores.interval))


def _as_json(estimate: Estimate | None) -> dict[str, object] | None:
    if estimate is None:
        return None
    interval = estimate.interval and list(estimate.interval)
    return {
        "value": estimate.value,
        "interval": interval,
        "p_value": estimate.p_value,
        "chance": estimate.chance,
    }


def test_the_dictionary_is_a_copy() -> None:
    scores = scores_of([(0, 0.25), (1, 0.75)])
    scores.to_dict()["by_group"]["majority"] = 9.0
    assert scores.by_group["majority"] == 0.25


def test_what_chance_does_is_told_of_the_number_that_it_stands_beside() -> None:
    """PD cancels between periods and |PD| does not, by chance as in fact.

    Dealt to halves of 200 users, a gap is nearly normal with the standard error of two means of
    100: of each user's mean over the periods for PD, of each period's values for |PD|.
    """

    def mean_size(values: np.ndarray) -> float:
        return values.std(ddof=1) * math.sqrt(2 / 100) * math.sqrt(2 / math.pi)

    values = np.random.default_rng(0).random((200, 4, 1))
    panel = GroupPanel(values, np.array([0, 1] * 100, dtype=np.int16), n_groups=2)
    (scores,) = group_statistics(panel, ["a", "b"], np.random.default_rng(1), 4000)
    assert scores.disparity is not None
    assert scores.disparity.chance == pytest.approx(mean_size(values.mean(axis=(1, 2))), rel=0.05)
    assert scores.abs_null_mean == pytest.approx(np.mean([mean_size(values[:, p, 0]) for p in range(4)]), rel=0.05)


def test_an_interval_is_the_percentiles_widened_for_the_smaller_side() -> None:
    """By Student's t and √(n / (n − 1)), of the 20 users against 60, and of all 80 for the mean."""
    values = np.random.default_rng(0).random((80, 1, 1))
    panel = GroupPanel(values, np.repeat(np.array([0, 1], dtype=np.int16), (20, 60)), n_groups=2)
    (scores,) = group_statistics(panel, ["a", "b"], np.random.default_rng(1), 300)
    drawn = panel.bootstrapped(np.random.default_rng(1), 300)
    assert scores.disparity is not None
    for value, interval, draws, factor in (
        (scores.disparity.value, scores.disparity.interval, drawn.gap[:, 0, 0], 2.0930 / 1.9600 * math.sqrt(20 / 19)),
        (scores.overall, scores.interval, drawn.overall[:, 0], 1.9905 / 1.9600 * math.sqrt(80 / 79)),
    ):
        low, high = np.quantile(draws, [0.025, 0.975])
        assert interval == pytest.approx((value + factor * (low - value), value + factor * (high - value)), abs=1e-4)


@given(st.integers(1, 60), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 0.9]))
def test_quantiles_are_those_of_what_is_there(n: int, seed: int, share_missing: float) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 8, size=(n, 3, 2)) / 8
    drawn[rng.random(drawn.shape) < share_missing] = np.nan
    shares = (0.025, 0.5, 0.975)
    for found, share in zip(by_group._quantiles(drawn, shares), shares, strict=True):
        for at in np.ndindex(3, 2):
            there = drawn[:, *at][~np.isnan(drawn[:, *at])]
            expected = np.quantile(there, share) if len(there) else np.nan
            np.testing.assert_allclose(found[at], expected, atol=1e-12)
