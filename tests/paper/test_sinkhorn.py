"""Sinkhorn scaling of P̂: how close to doubly stochastic it comes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.objectives import relaxed_permutation
from fairstream.paper.surrogates import doubly_stochastic

PAPERS_TAU = 3.0
SEEDS = st.integers(0, 10**6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "spread", "tolerance"), [(5, 1.0, 1e-6), (5, 10.0, 0.01), (41, 1.0, 2e-3), (41, 10.0, 0.02)]
)
@given(seed=SEEDS)
def test_rows_and_columns_sum_to_1_at_the_papers_temperature(
    seed: int, n: int, spread: float, tolerance: float
) -> None:
    scores = spread * torch.randn(20, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    p = doubly_stochastic(relaxed_permutation(scores, tau=PAPERS_TAU))
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(dim=-1), torch.ones(20, n, dtype=torch.float64))
    assert (p.sum(dim=-2) - 1).abs().max() < tolerance


@given(SEEDS, st.integers(1, 6))
def test_what_is_doubly_stochastic_stays_as_it_is(seed: int, n: int) -> None:
    permutation = torch.eye(n)[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    torch.testing.assert_close(doubly_stochastic(permutation), permutation)
    mixed = 0.5 * permutation + 0.5 / n
    torch.testing.assert_close(doubly_stochastic(mixed), mixed)


@given(SEEDS, st.integers(1, 6))
def test_scaling_rows_and_columns_beforehand_changes_nothing(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix, u, v = (0.1 + torch.rand(n, m, dtype=torch.float64, generator=generator) for m in (n, 1, 1))
    torch.testing.assert_close(doubly_stochastic(u * matrix * v.T), doubly_stochastic(matrix))


def test_a_row_of_zeros_stays_one() -> None:
    assert doubly_stochastic(torch.tensor([[0.0, 0.0], [1.0, 3.0]])).isfinite().all()
