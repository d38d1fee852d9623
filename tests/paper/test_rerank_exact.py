"""The exact reranking against all lists that there are."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.paper.rerank import Program
from rerank_exact import rerank_exact


def best_of_all_lists(program: Program) -> float | None:
    """Every list of every user with every other."""
    n_users, n_columns = program.scores.shape
    best = None
    for lists in product(combinations(range(n_columns), program.k), repeat=n_users):
        mask = np.zeros(program.scores.shape, np.bool_)
        for user, row in enumerate(lists):
            mask[user, list(row)] = True
        reranking = program.reranking(mask)
        if reranking.is_within:
            best = reranking.value if best is None else max(best, reranking.value)
    return best


@given(st.integers(0, 9999), st.sampled_from([0.0, 0.05, 0.2]))
def test_it_finds_the_best_of_all_lists(seed: int, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    codes, scores = np.array([0, 1, 1], np.int16), rng.normal(size=(3, 4))
    program = Program.of(scores, codes, k=2, tolerance=tolerance)
    found, expected = rerank_exact(program), best_of_all_lists(program)
    assert (found is None) == (expected is None)
    if found is not None:
        assert found.is_within
        assert found.value == pytest.approx(expected)


def test_programs_that_highs_stumbles_over_are_solved_all_the_same() -> None:
    none = -np.inf
    scores = np.array(
        [
            [-1, none, 1, 0],
            [-1, 0, 0, 0],
            [none, 1, none, 0],
            [-1, 0, -1, 0],
            [0, 0, 0, 0],
            [0, -1, 0, 1],
            [none, 1, -1, -1],
            [1, -1, none, -3],
        ]
    )
    codes = np.array([1, 0, 1, 1, 1, 1, 1, 1], np.int16)
    assert rerank_exact(Program.of(scores, codes, k=2, tolerance=0.01)) is None
    assert rerank_exact(Program.of(scores, codes, k=2, tolerance=0.2)) is not None
