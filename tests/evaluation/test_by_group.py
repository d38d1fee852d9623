"""From users' values to groups' means to the disparity."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.evaluation import GroupScores, disaggregate
from fairstream.events import Groups

NAMES = ("majority", "minority")


@st.composite
def judged(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Groups]:
    """Values of some users, in any order, of a table in which groups may be unknown or empty."""
    codes = draw(st.lists(st.sampled_from([-1, 0, 1]), max_size=12))
    users = draw(st.permutations(range(len(codes))))[: draw(st.integers(0, len(codes)))]
    values = draw(st.lists(st.floats(0, 1, width=32), min_size=len(users), max_size=len(users)))
    groups = Groups("community", NAMES, np.array(codes, dtype=np.int8))
    return np.array(values, dtype=np.float64), np.array(users, dtype=np.int64), groups


def naive_mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def same(found: float | None, expected: float | None) -> bool:
    return found is expected is None or found == pytest.approx(expected, abs=1e-12)


@given(judged())
def test_the_means_and_the_gap_are_what_they_say(data: tuple[np.ndarray, np.ndarray, Groups]) -> None:
    values, users, groups = data
    scores = disaggregate(*data)
    of = {code: [v for v, u in zip(values.tolist(), users, strict=True) if groups.codes[u] == code] for code in (0, 1)}
    assert same(scores.overall, naive_mean(values.tolist()))
    assert list(scores.by_group) == list(NAMES)
    assert same(scores.by_group["majority"], naive_mean(of[0]))
    assert same(scores.by_group["minority"], naive_mean(of[1]))
    if of[0] and of[1]:
        gap = scores.by_group["majority"] - scores.by_group["minority"]
        assert (scores.performance_disparity, scores.abs_performance_disparity) == (gap, abs(gap))
    else:
        assert (scores.performance_disparity, scores.abs_performance_disparity) == (None, None)


@given(judged())
def test_swapping_the_groups_changes_the_sign_and_nothing_else(data: tuple[np.ndarray, np.ndarray, Groups]) -> None:
    values, users, groups = data
    scores, swapped = disaggregate(values, users, groups), disaggregate(values, users, groups.swapped())
    assert swapped.overall == scores.overall
    assert swapped.by_group == scores.by_group
    assert swapped.abs_performance_disparity == scores.abs_performance_disparity
    if scores.performance_disparity is not None:
        assert swapped.performance_disparity == -scores.performance_disparity


@given(judged(), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_users_of_unknown_group_count_in_the_overall_value_alone(
    data: tuple[np.ndarray, np.ndarray, Groups], more: list[float]
) -> None:
    values, users, groups = data
    n = len(groups.codes)
    grown = groups.with_codes(np.append(groups.codes, [-1] * len(more)).astype(np.int8))
    scores = disaggregate(values, users, groups)
    joined = disaggregate(np.append(values, more), np.append(users, np.arange(n, n + len(more))), grown)
    assert joined.by_group == scores.by_group
    assert joined.performance_disparity == scores.performance_disparity
    assert same(joined.overall, naive_mean([*values.tolist(), *more]))


def test_advantaged_minus_disadvantaged() -> None:
    groups = Groups.from_values("gender", ["M", "F", "F"], advantaged="M")
    assert disaggregate(np.array([1.0, 0.25, 0.25]), np.arange(3), groups).performance_disparity == 0.75
    assert disaggregate(np.array([0.0, 0.25, 0.25]), np.arange(3), groups).performance_disparity == -0.25


def test_a_group_that_nobody_was_tested_of_has_no_value_and_leaves_no_gap() -> None:
    groups = Groups.from_values("gender", ["M", "F", "M"])
    scores = disaggregate(np.array([0.5, 1.0]), np.array([0, 2]), groups)
    assert scores == GroupScores(0.75, {"M": 0.75, "F": None}, None)
    empty = disaggregate(np.array([]), np.array([], dtype=np.int64), groups)
    assert empty == GroupScores(None, {"M": None, "F": None}, None)


def test_the_dictionary_holds_the_signed_gap() -> None:
    scores = GroupScores(0.5, {"M": 0.25, "F": 0.75}, -0.5)
    assert scores.to_dict() == {"overall": 0.5, "by_group": {"M": 0.25, "F": 0.75}, "performance_disparity": -0.5}
    scores.to_dict()["by_group"]["M"] = 9.0
    assert scores.by_group["M"] == 0.25
