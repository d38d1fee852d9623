"""The labels of the model, and what one more relevant item does to the gap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.paper.rerank import Program, relevant_by_score

LISTS = st.lists(st.integers(-50, 50), min_size=1, max_size=8)


@given(LISTS, st.integers(0, 3))
def test_an_item_is_relevant_above_seven_tenths_of_the_way_up(values: list[int], n_missing: int) -> None:
    scores = np.array([[*values, *[-np.inf] * n_missing]])
    low, high = min(values), max(values)
    expected = [10 * (value - low) > 7 * (high - low) for value in values] + [False] * n_missing
    assert relevant_by_score(scores)[0].tolist() == expected


def test_seven_tenths_itself_is_not_above() -> None:
    assert relevant_by_score(np.array([[1000.0, 701.0, 700.0, 699.0, 0.0]])).tolist() == [[True, True, *[False] * 3]]


@given(LISTS)
def test_the_best_is_relevant_and_the_worst_is_not_unless_they_are_alike(values: list[int]) -> None:
    labels = relevant_by_score(np.array([values], dtype=np.float64))[0]
    assert labels[int(np.argmax(values))] == (max(values) > min(values))
    assert not labels[int(np.argmin(values))]


def test_a_user_without_candidates_has_nothing_relevant() -> None:
    assert not relevant_by_score(np.full((2, 3), -np.inf)).any()


@given(st.integers(0, 999))
def test_the_gap_changes_by_a_users_weight_with_each_relevant_item(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = np.append([0, 1], rng.integers(-1, 2, 6)).astype(np.int16)
    program = Program.of(rng.normal(size=(8, 6)), codes, k=3, tolerance=0.0)
    lists = rng.random((8, 6)) < 0.5
    user, item = np.argwhere(program.relevant)[0] if program.relevant.any() else (0, 0)
    with_it, without = lists.copy(), lists.copy()
    with_it[user, item], without[user, item] = True, False
    change = program.gap(with_it) - program.gap(without)
    expected = program.weights[user] if program.relevant[user, item] else 0.0
    assert change == pytest.approx(expected, abs=1e-12)
    size = (codes == codes[user]).sum()
    if codes[user] >= 0:
        assert abs(program.weights[user]) == pytest.approx(2 / (size * (3 + program.relevant[user].sum())))
        assert (program.weights[user] > 0) == (codes[user] == 0)
    else:
        assert program.weights[user] == 0
