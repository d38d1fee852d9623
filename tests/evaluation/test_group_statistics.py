"""`group_statistics`: any numbers by group, with the statistics of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import ConfigurationError, DataError, evaluate_recommendations, group_statistics

GENDERS = ["M", "F", "M", "M"] * 15
HITS = [1.0, 0.0, 0.0, 1.0, 1.0] * 12


def test_an_evaluation_has_the_statistics_of_its_users_values() -> None:
    users = np.arange(60)
    truth = pa.table({"user_id": users, "item_id": [0] * 60, "gender": GENDERS})
    lists = pa.table({"user_id": users, "item_id": [int(hit == 0) for hit in HITS], "rank": [1] * 60})
    options: dict[str, Any] = {"min_group_size": 10, "n_resamples": 99, "seed": 3}
    evaluation = evaluate_recommendations(lists, truth, group="gender", k=1, metrics=["hit"], **options)
    labels = dict(zip(users.tolist(), GENDERS, strict=True))
    found = group_statistics(
        evaluation.values["hit@1"], [labels[user] for user in evaluation.users.to_pylist()], **options
    )
    assert found == evaluation["hit@1"]


@pytest.mark.parametrize(
    "column",
    [list, tuple, np.array, pd.Series, pl.Series, pa.array],
    ids=["list", "tuple", "numpy", "pandas", "polars", "arrow"],  # the address of a function differs by process
)
def test_any_kind_of_column_gives_the_same_numbers(column: Callable[[Any], Any]) -> None:
    expected = group_statistics(HITS, GENDERS, min_group_size=1, n_resamples=20)
    assert group_statistics(column(HITS), column(GENDERS), min_group_size=1, n_resamples=20) == expected


def test_labels_need_not_be_text_and_a_missing_one_counts_overall_only() -> None:
    scores = group_statistics([1, 0, 1, 0, 1], [18, 18, 65, 65, None], min_group_size=1, n_resamples=0)
    assert (scores.mean, scores.by_group) == (0.6, {"18": 0.5, "65": 0.5})


@pytest.mark.parametrize(
    ("labels", "names"),
    [([("F", 18), ("M", 18)], ["F,18", "M,18"]), (np.array(["F", "M", np.nan], object), ["F", "M"])],
    ids=["tuples of several types", "NaN among strings"],
)
def test_labels_can_be_tuples_and_can_be_missing(labels: Any, names: list[str]) -> None:
    scores = group_statistics(range(len(labels)), labels, min_group_size=1, n_resamples=0, advantaged=labels[0])
    assert sorted(scores.by_group) == names


@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from("abc")), min_size=6), st.randoms())
def test_the_order_of_users_changes_no_interval(users: list[tuple[float, str]], random: Any) -> None:
    users += [(0.5, name) for name in "abc"]
    shuffled = random.sample(users, len(users))
    one, other = (
        group_statistics(*zip(*part, strict=True), advantaged="a", min_group_size=1, n_resamples=1)
        for part in (users, shuffled)
    )
    assert one.interval == pytest.approx(other.interval, abs=1e-9)
    for name in "abc":
        assert one.gaps[name].interval == pytest.approx(other.gaps[name].interval, abs=1e-9)


def test_the_gap_is_that_of_the_worst_served_group_with_its_interval() -> None:
    scores = group_statistics([1, 1, 0, 1, 0, 0, 1, 0, 0], list("aaabbbccc"), min_group_size=1, n_resamples=50)
    behind = scores.gaps[scores.furthest_behind_group]
    assert scores.gap.value == -behind.value == -min(gap.value for gap in scores.gaps.values())
    assert scores.gap.interval == (-behind.high, -behind.low)
    assert scores.gap.low <= scores.gap.value <= scores.gap.high
    assert scores.gap.p_value == scores.furthest_behind.p_value


def test_small_groups_are_not_compared() -> None:
    scores = group_statistics(HITS, [*GENDERS[:-1], "x"], min_group_size=15, n_resamples=0)
    assert scores.by_group["x"] is None
    assert list(scores.gaps) == ["M", "F"]


@pytest.mark.parametrize(
    ("values", "groups", "options", "error", "message"),
    [
        ([1, 2, 3], ["a", "b"], {}, DataError, "3 values and 2 groups"),
        ([1, np.nan], ["a", "b"], {}, DataError, "missing or infinite"),
        ([[1], [2]], ["a", "b"], {}, DataError, r"shape \(2, 1\)"),
        (["high", "low"], ["a", "b"], {}, DataError, "must be numbers"),
        ([1, 2], ["a", "a"], {}, DataError, "takes 1 value"),
        ([1, 2], ["a", "b"], {"advantaged": "c"}, DataError, "no user has"),
        ([1, 2], ["a", "b"], {"n_resamples": -1}, ConfigurationError, "n_resamples >= 0"),
        ([1, 2], ["a", "b"], {"min_group_size": 0}, ConfigurationError, "min_group_size must be >= 1"),
    ],
)
def test_input_that_cannot_be_compared_is_refused(
    values: Any, groups: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        group_statistics(values, groups, **options)
