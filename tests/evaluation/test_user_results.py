"""What a test leaves behind of each user: stored as JSON and found again, and laid side by side."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.errors import ConfigurationError
from fairstream.evaluation import AggregateMetric, UserResults, stack_periods
from fairstream.evaluation.metrics import HitCounts, mrr, recall
from fairstream.paper.protocol import PaperProtocol

METRICS = PaperProtocol.repaired().metrics


@st.composite
def user_results(draw: st.DrawFn, k: int | None = None) -> UserResults:
    """Any users with one list or several, each with its hits and at least as many positives."""
    k = draw(st.integers(1, 6)) if k is None else k
    users = sorted(draw(st.sets(st.integers(0, 12), max_size=8)))
    n_lists = [draw(st.integers(1, 3)) for _ in users] if draw(st.booleans()) else None
    n_rows = len(users) if n_lists is None else sum(n_lists)
    hits = [draw(st.lists(st.integers(0, 1), min_size=k, max_size=k)) for _ in range(n_rows)]
    n_positives = [max(1, sum(row)) + draw(st.integers(0, 5)) for row in hits]
    return UserResults(
        np.array(users, dtype=np.int64),
        np.array([user % 4 - 1 for user in users], dtype=np.int16),
        np.array([draw(st.booleans()) for _ in users], dtype=np.bool_),
        np.array(hits, dtype=np.bool_).reshape(n_rows, k),
        np.array(n_positives, dtype=np.int64),
        {"novelty@3": np.array(users) * 0.5} if draw(st.booleans()) else {},
        {"coverage@3": AggregateMetric(0.5, (0.25, None), (0.75, None))} if draw(st.booleans()) else {},
        None if n_lists is None else np.array(n_lists, dtype=np.int64),
    )


def rows_of(tested: UserResults) -> list[list[int]]:
    """The rows of the lists of each user."""
    ends = np.cumsum(np.ones(len(tested.users), np.int64) if tested.n_lists is None else tested.n_lists).tolist()
    return [list(range(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def assert_the_same(one: UserResults, other: UserResults) -> None:
    assert (one.n_lists is None) == (other.n_lists is None)
    for name in ("users", "codes", "is_cold", *(() if one.n_lists is None else ("n_lists",))):
        found, expected = getattr(one, name), getattr(other, name)
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
    assert one.hits.dtype == other.hits.dtype
    assert one.hits.shape == other.hits.shape
    assert np.array_equal(one.hits, other.hits)
    assert np.array_equal(one.n_positives, other.n_positives)
    assert {name: values.tolist() for name, values in one.values.items()} == {
        name: values.tolist() for name, values in other.values.items()
    }
    assert one.totals == other.totals


@given(user_results())
def test_what_was_stored_as_json_is_found_again(tested: UserResults) -> None:
    document = json.loads(json.dumps(tested.to_dict()))
    assert_the_same(UserResults.from_dict(document), tested)
    assert UserResults.from_dict(document).to_dict() == document


@given(user_results())
def test_every_metric_can_be_computed_from_what_was_stored(tested: UserResults) -> None:
    again = UserResults.from_dict(tested.to_dict())
    stored = HitCounts(tested.hits, tested.n_positives)
    for metric in METRICS.values():
        of_lists = metric(stored, stored)
        expected = [of_lists[rows].mean() for rows in rows_of(tested)]
        assert again.values_of(metric).tolist() == pytest.approx(expected, abs=1e-15)
    if len(again.users) == 0:
        assert again.values_of("mine@3").shape == (0,)  # where nobody was tested, every metric has no values
        return
    with pytest.raises(ConfigurationError, match="no users' values of the metric mine@3"):
        again.values_of("mine@3")


def test_the_document_says_at_which_ranks_the_hits_are() -> None:
    hits = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=bool)
    tested = UserResults(
        np.array([3, 5, 9]),
        np.array([0, -1, 1], dtype=np.int16),
        np.array([0, 0, 1], dtype=bool),
        hits,
        np.ones(3, np.int64),
    )
    assert tested.to_dict() == {
        "k": 3,
        "users": [3, 5, 9],
        "groups": [0, -1, 1],
        "cold": [2],
        "n_positives": [1, 1, 1],
        "hit_ranks": [[2, 3], [], [1]],
    }


@given(user_results(), st.data())
def test_choosing_users_keeps_what_belongs_to_them(tested: UserResults, data: st.DataObject) -> None:
    n = len(tested.users)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_)
    part, stored = tested.where(chosen), tested.to_dict()
    places = np.flatnonzero(chosen).tolist()
    assert part.users.tolist() == [stored["users"][place] for place in places]
    assert part.to_dict()["groups"] == [stored["groups"][place] for place in places]
    rows = [row for place in places for row in rows_of(tested)[place]]
    assert part.to_dict()["hit_ranks"] == [stored["hit_ranks"][row] for row in rows]
    assert part.to_dict()["n_positives"] == [stored["n_positives"][row] for row in rows]
    if tested.n_lists is not None:
        assert part.to_dict()["n_lists"] == [stored["n_lists"][place] for place in places]
    assert [values.tolist() for values in part.values.values()] == [(part.users * 0.5).tolist() for _ in tested.values]
    assert not part.totals
    assert part.is_cold.tolist() == [place in stored["cold"] for place in places]


@given(st.lists(user_results(k=3), min_size=1, max_size=4))
def test_side_by_side_every_user_has_a_row_and_every_test_a_column(tests: list[UserResults]) -> None:
    values, codes = stack_periods(tests, [recall, mrr])
    everyone = sorted({user for tested in tests for user in tested.users.tolist()})
    assert values.shape == (len(everyone), len(tests), 2)
    assert codes.tolist() == [user % 4 - 1 for user in everyone]
    for p, tested in enumerate(tests):
        found = dict(
            zip(tested.users.tolist(), zip(tested.values_of(recall), tested.values_of(mrr), strict=True), strict=True)
        )
        for row, user in enumerate(everyone):
            expected = found.get(user, (math.nan, math.nan))
            assert values[row, p].tolist() == pytest.approx(list(expected), nan_ok=True)
