"""The compiled loops, each against the function that it replaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.objectives import DisparityLoss, Objective, differentiable_disparity, fairness_loss
from fairstream.training.engines.cpu_kernels import (
    Loss,
    Table,
    exp_negative,
    fairness,
    losses,
    make_buffers,
    swap_rows,
)
from fairstream.training.engines.cpu_mf import RowSubset
from support import EXTREME


def test_the_exponential_is_exact_to_a_few_units_in_the_last_place() -> None:
    x = np.concatenate([-np.logspace(-30, np.log10(87), 20_000), np.linspace(-87, 0, 20_000)]).astype(np.float32)
    found = np.array([exp_negative(value) for value in x], dtype=np.float64)
    assert np.abs(found / np.exp(x.astype(np.float64)) - 1).max() < 3e-7
    assert exp_negative(np.float32(-1000.0)) < 2e-38
    assert exp_negative(np.float32(0.0)) == 1.0


def tables(score: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(score, min_size=5, max_size=5), min_size=1, max_size=7)


@given(
    # Ties too; but no differences that single precision takes for ties and double does not.
    tables(st.integers(-20_000, 20_000).map(lambda score: score / 1024) | st.sampled_from([0.0, 1.0])),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.5, 4.0]),
    st.sampled_from(["signed", "absolute"]),
    st.floats(0.3, 5.0),
    st.lists(st.integers(-1, 2), min_size=7, max_size=7),
)
def test_the_loss_and_its_gradient_are_autograds(
    table: list[list[float]], n: int, mu: int, lambda_: float, kind: Any, tau: float, codes: list[int]
) -> None:
    s = torch.tensor(table, dtype=torch.float64, requires_grad=True)[:, : 1 + max(n, mu)]
    n_rows, signs = len(table), (1.0, -1.0, -1.0)
    groups = torch.tensor(codes[:n_rows], dtype=torch.int16)
    known = groups[groups >= 0]
    has_two = len(known.unique()) > 1
    objective = Objective(lambda_=lambda_, n=n, mu=mu, fairness=DisparityLoss(kind, "hit", tau))
    expected = objective(s, groups, torch.tensor(signs, dtype=torch.float64), has_two_groups=has_two)
    (slope,) = torch.autograd.grad(expected, s)

    buffers = make_buffers(size=n_rows, n_drawn=max(n, mu), d=2, n_groups=3, n_users=1, n_items=1)
    buffers.scores[:] = s.detach().numpy().T
    buffers.codes[:] = groups.numpy()
    found = losses(n_rows, Loss(n, mu, tau, lambda_, kind == "signed", np.array(signs)), buffers)
    assert found == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    size = 1.0 + float(slope.abs().max())
    assert np.abs(buffers.score_grads.T - slope.numpy()).max() < 1e-5 * size


@given(tables(EXTREME))
def test_huge_scores_give_numbers(table: list[list[float]]) -> None:
    buffers = make_buffers(size=len(table), n_drawn=4, d=2, n_groups=2, n_users=1, n_items=1)
    buffers.scores[:] = np.array(table, dtype=np.float32).T
    buffers.codes[:] = np.arange(len(table)) % 2
    assert np.isfinite(losses(len(table), Loss(4, 4, 0.01, 2.0, True, np.array([1.0, -1.0])), buffers))
    assert np.isfinite(buffers.score_grads).all()


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(-1, 3)), min_size=1, max_size=30))
def test_the_fairness_loss_takes_part_only_where_two_groups_are(users: list[tuple[float, int]]) -> None:
    dh, codes = (np.array(column) for column in zip(*users, strict=True))
    signs, slope = np.array([1.0, -1.0, -1.0, 1.0]), np.empty(4, dtype=np.float32)
    loss = Loss(4, 4, 3.0, 1.0, True, signs)
    found = fairness(dh.astype(np.float32), codes.astype(np.int16), len(dh), loss, np.empty((2, 4)), slope)
    if len(set(codes[codes >= 0].tolist())) < 2:
        assert found == 0
        assert not slope.any()
    else:
        disparity = differentiable_disparity(torch.from_numpy(dh), torch.from_numpy(codes), 4)
        assert found == pytest.approx(float(fairness_loss(disparity, torch.from_numpy(signs))), rel=1e-5)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_a_subset_holds_the_rows_in_the_order_of_their_first_occurrence(column: list[int]) -> None:
    rows = np.array(column)
    parts = [np.arange(10 * 3, dtype=np.float32).reshape(10, 3) + shift for shift in (0, 100, 200)]
    whole = Table(*parts, np.arange(10, dtype=np.float32))
    renamed = rows.copy()
    subset = RowSubset.copy(whole, renamed)
    assert subset.rows.tolist() == list(dict.fromkeys(column))
    assert subset.rows[renamed].tolist() == column
    for ours, theirs in zip(subset.table, whole, strict=True):
        assert ours[renamed].tolist() == theirs[rows].tolist()
    before = [part.copy() for part in whole]
    for part in subset.table:
        np.add(part, 1, out=part)
    nobody, is_written = RowSubset.copy(whole, rows[:0].copy()), np.zeros(1, dtype=np.bool_)
    swap_rows(subset, whole, nobody, whole, is_written)
    assert is_written[0]
    touched = np.isin(np.arange(10), rows)
    for part, old in zip(whole, before, strict=True):
        assert (part[touched] == old[touched] + 1).all()
        assert (part[~touched] == old[~touched]).all()
    swap_rows(subset, whole, nobody, whole, is_written)
    assert not is_written[0]
    assert all((part == old).all() for part, old in zip(whole, before, strict=True))
