"""From users' values to groups' means to gaps, and what is said of their uncertainty."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import stdtrit

from fairstream.evaluation import Estimate, GroupPanel, GroupScores, panel_scores

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
    (scores,) = panel_scores(panel, NAMES[:n_groups], np.random.default_rng(0), n_resamples)
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
    assert same(scores.mean, naive_mean([value for _, value in users]))
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


@given(some_users())
def test_without_resampling_nothing_is_said_of_uncertainty(data: tuple[Users, int]) -> None:
    scores = scores_of(*data)
    assert scores.interval is None
    for estimate in (*scores.gaps.values(), scores.largest_gap, scores.spread, scores.disparity):
        assert estimate is None or (estimate.interval, estimate.p_value, estimate.null_mean) == (None, None, None)
        assert estimate is None or not estimate.may_be_chance
    panel = panel_of(*data)
    assert panel_scores(panel, NAMES[: data[1]], None, 100) == [scores]


@given(some_users())
def test_resampling_adds_to_the_numbers_and_changes_none(data: tuple[Users, int]) -> None:
    plain, resampled = scores_of(*data), scores_of(*data, n_resamples=20)

    def bare(estimate: Estimate | None) -> Estimate | None:
        return None if estimate is None else Estimate(estimate.value)

    assert plain == replace(
        resampled,
        interval=None,
        gaps={name: bare(gap) for name, gap in resampled.gaps.items()},
        by_group_interval={},
        largest_gap=bare(resampled.largest_gap),
        furthest_behind=bare(resampled.furthest_behind),
        spread=bare(resampled.spread),
        disparity=bare(resampled.disparity),
        null_mean=None,
    )
    assert (resampled.interval is None) == (not data[0])
    if len(resampled.by_group) == 2 and resampled.disparity is not None:  # one period: |PD| is the size of PD
        assert resampled.null_mean == pytest.approx(resampled.disparity.null_mean)
    for gap in resampled.gaps.values():
        assert gap.interval is not None
        assert 0 < gap.p_value <= 1


def test_a_gap_that_no_random_division_reaches_has_the_smallest_p_value_there_is() -> None:
    """The division as it is counts as one of them, so that no p-value is zero."""
    scores = scores_of([(user % 2, float(user % 2)) for user in range(60)], n_resamples=99)
    assert [gap.p_value for gap in scores.gaps.values()] == pytest.approx([0.01, 0.01])


@given(some_users())
def test_swapping_two_groups_changes_the_sign_and_nothing_else(data: tuple[Users, int]) -> None:
    users = [(min(code, 1), value) for code, value in data[0]]
    scores, swapped = scores_of(users), scores_of([({0: 1, 1: 0}.get(code, -1), value) for code, value in users])
    assert swapped.mean == pytest.approx(scores.mean)
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
    assert same(joined.mean, naive_mean([value for _, value in users] + more))


@given(some_users(), st.integers(5, 60))
def test_the_largest_gap_is_tested_more_strictly_than_each_gap_by_itself(data: tuple[Users, int], n: int) -> None:
    """Because one of several gaps is large more often than a certain one is."""
    scores = scores_of(*data, n_resamples=n)
    assume(scores.gaps)
    assert scores.largest_gap.p_value >= min(gap.p_value for gap in scores.gaps.values())
    assert scores.largest_gap.null_mean >= scores.gaps[scores.largest_gap_group].null_mean - 1e-12


@pytest.mark.slow
def test_for_several_groups_the_largest_of_gaps_that_are_not_there_is_rarely_found() -> None:
    """Eight equal groups: one of eight gaps is below 0.05 often, the largest as rarely as it says."""
    rng, names, n = np.random.default_rng(0), "abcdefgh", 300
    values = np.where(rng.random((160, 1, n)) < 0.6, 0.0, rng.beta(1.2, 2.5, (160, 1, n)))
    found = panel_scores(GroupPanel(values, np.repeat(np.arange(8), 20).astype(np.int16), 8), names, rng, 399)
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
    nothing = GroupScores(None, None, {"majority": None, "minority": None}, {}, *[None] * 7)
    alone = replace(nothing, mean=0.75, by_group={"majority": 0.75, "minority": None}, advantaged="majority")
    assert scores_of([(0, 0.5), (0, 1.0)]) == alone
    assert scores_of([]) == scores_of([], n_resamples=5) == nothing


def test_where_nobodys_group_is_known_there_is_an_overall_value_and_no_more() -> None:
    (scores,) = panel_scores(panel_of([(-1, 0.5), (-1, 1.0)], n_groups=0), ())
    assert scores == GroupScores(0.75, None, {}, {}, *[None] * 7)


@pytest.mark.parametrize(("p_value", "may_be"), [(None, False), (0.001, False), (0.05, True), (0.3, True), (1.0, True)])
def test_what_cannot_be_told_from_chance(p_value: float | None, may_be: bool) -> None:
    assert Estimate(0.1, p_value=p_value).may_be_chance is may_be


@given(some_users(), st.sampled_from([0, 10]))
def test_the_dictionary_says_the_same_as_json(data: tuple[Users, int], n_resamples: int) -> None:
    scores = scores_of(*data, n_resamples=n_resamples)
    document = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert document["mean"] == scores.mean
    assert document["by_group"] == scores.by_group
    assert document["performance_disparity"] == scores.performance_disparity
    assert document["abs_performance_disparity"] == scores.abs_performance_disparity
    assert document["abs_performance_disparity_debiased"] == scores.abs_performance_disparity_debiased
    assert (document["p_value"], document["null_mean"]) == (scores.p_value, scores.null_mean)
    assert scores.p_value == (scores.disparity and scores.disparity.p_value)
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
        "null_mean": estimate.null_mean,
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
    (scores,) = panel_scores(panel, ["a", "b"], np.random.default_rng(1), 4000)
    assert scores.disparity is not None
    assert scores.disparity.null_mean == pytest.approx(mean_size(values.mean(axis=(1, 2))), rel=0.05)
    assert scores.null_mean == pytest.approx(np.mean([mean_size(values[:, p, 0]) for p in range(4)]), rel=0.05)


def wilson(values: np.ndarray, pooled: np.ndarray) -> tuple[float, float, float]:
    """The mean and its score interval with n / φ users, φ from the values and from 8 users of the pooled sample."""
    n, mean, centre = len(values), values.mean(), pooled.mean()
    own = values.var(ddof=1) / (mean * (1 - mean)) if 0 < mean < 1 else 0.0
    spread = pooled.var(ddof=1)
    shrunk = (n * values.var(ddof=1) + 8 * spread) / (n * mean * (1 - mean) + 8 * centre * (1 - centre))
    k = float(stdtrit(n - 1, 0.975)) ** 2 * max(own, shrunk) / n
    half = math.sqrt(k * mean * (1 - mean) + k**2 / 4)
    return mean, (mean + k / 2 - half) / (1 + k), (mean + k / 2 + half) / (1 + k)


@pytest.mark.parametrize("share_of_zeros", [0.0, 0.5, 0.9, 1.0])
def test_an_interval_is_newcombes_with_effective_sample_sizes(share_of_zeros: float) -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random(80) < 0.6, rng.random(80), 0.0)
    values[: int(20 * share_of_zeros)] = 0.0
    codes = np.repeat(np.array([0, 1], dtype=np.int16), (20, 60))
    (scores,) = panel_scores(GroupPanel(values[:, None, None], codes, n_groups=2), ["a", "b"], rng, 20)
    (a, low_a, high_a), (b, low_b, high_b) = wilson(values[:20], values), wilson(values[20:], values)
    gap = a - b
    low, high = gap - math.hypot(a - low_a, high_b - b), gap + math.hypot(high_a - a, b - low_b)
    assert scores.disparity.interval == pytest.approx((low, high), abs=1e-12)
    assert scores.interval == pytest.approx(wilson(values, values)[1:], abs=1e-12)
    assert low < gap < high


def test_of_a_metric_that_is_no_share_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(size=80)
    codes = np.repeat(np.array([0, 1], dtype=np.int16), (20, 60))
    panel = GroupPanel(values[:, None, None], codes, n_groups=2)
    (scores,) = panel_scores(panel, ["a", "b"], np.random.default_rng(0), 20)
    half = stdtrit(79, 0.975) * values.std(ddof=1) / math.sqrt(80)
    assert scores.interval == pytest.approx((values.mean() - half, values.mean() + half))
    sides = [stdtrit(len(x) - 1, 0.975) * x.std(ddof=1) / math.sqrt(len(x)) for x in (values[:20], values[20:])]
    assert scores.disparity.interval[1] - scores.disparity.value == pytest.approx(math.hypot(*sides))


def test_group_means_and_their_difference_are_over_the_same_periods() -> None:
    """In the second period the minority has one user and is excluded: its mean and the majority's skip it."""
    values = np.array([[0.2, 0.9], [0.4, 0.9], [0.6, 0.1], [0.8, math.nan]])[:, :, None]
    panel = GroupPanel(values, np.array([0, 0, 1, 1], dtype=np.int16), n_groups=2, min_size=2)
    (scores,) = panel_scores(panel, NAMES[:2])
    assert scores.by_group == pytest.approx({"majority": 0.3, "minority": 0.7})
    assert scores.performance_disparity == pytest.approx(-0.4)
    assert scores.mean == pytest.approx((0.5 + 1.9 / 3) / 2)


def test_the_de_biased_size_is_zero_within_one_standard_error_and_the_size_itself_far_beyond() -> None:
    rng = np.random.default_rng(0)
    codes = np.array([0, 1] * 200, dtype=np.int16)
    noise = rng.normal(0, 0.1, (400, 1, 1))
    noise -= np.array([noise[codes == code].mean() for code in (0, 1)])[codes][:, None, None]
    for gap in (0.005, 0.02, 0.4):
        values = 0.5 + noise + gap * (codes == 0)[:, None, None]
        (scores,) = panel_scores(GroupPanel(values, codes, n_groups=2), NAMES[:2])
        variance = sum(values[codes == code].var(ddof=1) / 200 for code in (0, 1))
        expected = math.sqrt(max(0.0, gap**2 - variance))
        assert scores.abs_performance_disparity == pytest.approx(gap)
        assert scores.abs_performance_disparity_debiased == pytest.approx(expected, abs=1e-9)
    assert expected > 0.399
