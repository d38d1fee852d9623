"""Statistics of groups across batches: the running means, what their gradient is, and the bias that they remove."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.objectives.fairness import (
    LargestGapLoss,
    RunningDisparity,
    RunningMeans,
    differentiable_disparity,
    fairness_loss,
)

CPU = torch.device("cpu")
N_GROUPS = 3
SIGNS = torch.tensor([1.0, -1.0])
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(-1, N_GROUPS - 1), st.floats(-2, 2)), min_size=1, max_size=6), min_size=1, max_size=8
)
Rows = list[tuple[int, float]]


def columns(batch: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    codes, values = zip(*batch, strict=True)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(codes)


def weighted(batches: list[Rows], decay: float, codes: set[int]) -> tuple[float, float]:
    """The weighted mean over all interactions of some groups, an interaction of b batches ago counting decay^b."""
    rows = [
        (decay ** (len(batches) - 1 - b), x) for b, batch in enumerate(batches) for code, x in batch if code in codes
    ]
    total = sum(weight for weight, _ in rows)
    return (sum(weight * x for weight, x in rows) / total if total else 0.0), total


@given(BATCHES, st.sampled_from([0.0, 0.3, 0.9]))
def test_running_means_are_weighted_means_over_all_batches(batches: list[Rows], decay: float) -> None:
    means = RunningMeans(N_GROUPS, CPU, decay)
    for batch in batches:
        means.update(*columns(batch))
    for code in range(N_GROUPS):
        mean, n = weighted(batches, decay, {code})
        assert means.n[code].item() == pytest.approx(n, abs=1e-9)
        if n:
            assert means.mean[code].item() == pytest.approx(mean, abs=1e-9)


def test_a_group_that_stays_away_for_a_thousand_batches_keeps_its_mean() -> None:
    means = RunningMeans(2, CPU, 0.5)
    means.update(torch.tensor([0.25, 1.0]), torch.tensor([0, 1]))
    for _ in range(1200):  # its weight becomes 0, and nothing is divided by it
        means.update(torch.tensor([1.0]), torch.tensor([1]))
    assert means.mean.tolist() == [0.25, 1.0]


@given(BATCHES, st.sampled_from([0.3, 0.9]))
def test_the_disparity_is_that_of_everything_so_far_and_its_gradient_that_of_the_batch(
    batches: list[Rows], decay: float
) -> None:
    running = RunningDisparity(N_GROUPS, CPU, decay)
    for batch in batches:
        values, groups = columns(batch)
        disparity = running(values.requires_grad_(), groups)
    alone = values.detach().clone().requires_grad_()
    of_batch = differentiable_disparity(alone, groups, N_GROUPS)
    for code in range(N_GROUPS):
        (inside, n), (outside, m) = (weighted(batches, decay, codes) for codes in ({code}, {*range(N_GROUPS)} - {code}))
        assert bool(disparity.is_defined[code]) == (n > 0 and m > 0)
        if n > 0 and m > 0:
            assert disparity.dpd[code].item() == pytest.approx(inside - outside, abs=1e-9)
        (slope,) = torch.autograd.grad(disparity.dpd[code], values, retain_graph=True)
        expected = torch.zeros_like(slope)
        if of_batch.is_defined[code]:
            (expected,) = torch.autograd.grad(of_batch.dpd[code], alone, retain_graph=True)
        assert torch.equal(slope, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least_gain"), [("signed", 5), ("absolute", 3)])
def test_the_bias_of_small_batches_nearly_vanishes(kind: str, least_gain: float) -> None:
    """Batches with one or two users of the small group: the mean loss against that of all the data."""
    rng = np.random.default_rng(0)
    groups = np.where(rng.random((2000, 30)) < 0.06, 1, 0)
    quality = np.where(groups == 1, rng.normal(0.30, 0.8, groups.shape), rng.normal(0.45, 0.8, groups.shape))
    of = differentiable_disparity(torch.tensor(quality).flatten(), torch.tensor(groups).flatten())
    exact = fairness_loss(of, SIGNS, kind).item()
    running, plain, accumulated = RunningDisparity(2, CPU, 0.98), [], []
    for values, codes in zip(torch.tensor(quality), torch.tensor(groups), strict=True):
        disparity = running(values, codes)
        if len(codes.unique()) < 2:
            continue
        plain.append(fairness_loss(differentiable_disparity(values, codes), SIGNS, kind).item())
        accumulated.append(fairness_loss(disparity, SIGNS, kind).item())
    bias, remaining = abs(fmean(plain) - exact), abs(fmean(accumulated[100:]) - exact)
    assert bias > 0.015
    assert remaining < bias / least_gain


def test_batches_of_one_group_count_in_the_largest_gap() -> None:
    loss = LargestGapLoss("log-likelihood", softness=0.001).start(2, CPU)
    assert not loss.needs_two_groups
    high, low = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    loss(high, torch.tensor([0]), SIGNS)
    value = loss(low, torch.tensor([1]), SIGNS)  # no batch has both groups
    assert value.item() == pytest.approx(3.0, abs=1e-3)


def test_nobody_known_is_a_loss_of_0_without_a_gradient() -> None:
    scores = torch.randn(3, 4, requires_grad=True)
    value = LargestGapLoss().start(2, CPU)(scores, torch.tensor([-1, -1, -1]), SIGNS)
    assert value.item() == 0
    (slope,) = torch.autograd.grad(value, scores)
    assert not slope.any()
