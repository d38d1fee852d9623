"""Group DRO against an adversary written out by hand, CVaR against a sort."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.errors import ConfigurationError
from fairstream.objectives import CVaRLoss, GroupDROLoss, Objective, softmax_loss
from fairstream.objectives.total import AmongAll

CPU = torch.device("cpu")
SIGNS = torch.tensor([1.0, -1.0, -1.0])


def batch_of(rng: np.random.Generator, codes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(rng.normal(0, 1, (len(codes), 4))), torch.tensor(codes)


def losses_of(scores: torch.Tensor) -> list[float]:
    """−log softmax of column 0, number by number."""
    return [math.log(sum(math.exp(s) for s in row)) - row[0] for row in scores.tolist()]


# ── Group DRO ────────────────────────────────────────────────────────────────────────────


def test_a_group_that_is_seen_late_begins_with_the_mean_weight() -> None:
    """However long the others have lost as much as it does."""
    loss = GroupDROLoss(0.5, 0.0).start(3, CPU)
    scores = torch.zeros(4, 4)
    for _ in range(50):
        loss(scores, torch.tensor([0, 0, 1, 1]), SIGNS)
    assert loss.weights is not None
    q = loss.weights.update(torch.ones(3), torch.tensor([0, 1, 2]))
    assert q.tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_the_weights_are_those_of_exponentiated_gradient_ascent(decay: float) -> None:
    """All groups in all batches: q_g ← q_g exp(η ℓ̂_g) / Σ, with ℓ̂ the running mean of each group's loss."""
    rng, eta = np.random.default_rng(0), 0.7
    loss = GroupDROLoss(eta, decay).start(3, CPU)
    q, total, n = np.full(3, 1 / 3), np.zeros(3), np.zeros(3)
    for _ in range(6):
        scores, groups = batch_of(rng, [0, 1, 2, 1, 0, 2, 2, -1])
        scores.requires_grad_()
        own = np.array(losses_of(scores))
        codes = groups.numpy()
        sums = np.array([own[codes == g].sum() for g in range(3)])
        counts = np.array([(codes == g).sum() for g in range(3)])
        total, n = decay * total + sums, decay * n + counts
        q = q * np.exp(eta * total / n)
        q /= q.sum()
        value = loss(scores, groups, SIGNS)
        assert value.item() == pytest.approx(float(q @ (sums / counts)), abs=1e-9)
        (slope,) = torch.autograd.grad(value, scores)
        p = scores.detach().softmax(1).numpy()
        share = np.where(codes >= 0, (q / counts)[codes.clip(0)], 0.0)
        np.testing.assert_allclose(slope, share[:, None] * (p - np.eye(4)[0]), atol=1e-9)


def test_a_group_that_a_batch_does_not_show_goes_on_counting_by_what_was_known_of_it() -> None:
    rng = np.random.default_rng(1)
    loss = GroupDROLoss(0.5, 0.9).start(3, CPU)
    bad = torch.tensor([[-4.0, 0.0], [2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    loss(bad, torch.tensor([0, 1, 2]), SIGNS)
    assert loss.weights is not None
    before = loss.weights.theta.clone()
    for _ in range(3):
        loss(*batch_of(rng, [1, 2]), SIGNS)
    assert loss.weights.theta[0] > before[0]


def test_a_group_that_appears_late_begins_with_the_mean_weight() -> None:
    loss = GroupDROLoss(0.0, 0.9).start(3, CPU)
    two = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    first, second = losses_of(two)
    assert loss(two, torch.tensor([0, 2]), SIGNS).item() == pytest.approx((first + second) / 2)
    three = torch.cat([two, two[:1]])
    assert loss(three, torch.tensor([0, 2, 1]), SIGNS).item() == pytest.approx((2 * first + second) / 3)


def test_the_order_of_the_groups_does_not_matter() -> None:
    rng, order = np.random.default_rng(2), torch.tensor([2, 0, 1])
    one, other = (GroupDROLoss(0.5, 0.9).start(3, CPU) for _ in range(2))
    for _ in range(4):
        scores, groups = batch_of(rng, [0, 1, 1, 2])
        assert one(scores, groups, SIGNS).item() == pytest.approx(other(scores, order[groups], SIGNS).item())


def test_one_group_alone_is_its_mean_loss_and_nobody_known_is_nothing() -> None:
    scores, _ = batch_of(np.random.default_rng(3), [0, 0, 0])
    loss = GroupDROLoss().start(3, CPU)
    nobody = loss(scores.clone().requires_grad_(), torch.tensor([-1, -1, -1]), SIGNS)
    assert nobody.item() == 0
    assert loss(scores, torch.tensor([1, 1, -1]), SIGNS).item() == pytest.approx(np.mean(losses_of(scores)[:2]))


def test_called_without_a_training_it_remembers_nothing() -> None:
    scores, groups = batch_of(np.random.default_rng(4), [0, 1, 2])
    loss = GroupDROLoss(5.0)
    assert loss(scores, groups, SIGNS) == loss(scores, groups, SIGNS)


# ── CVaR ─────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 12), st.floats(0.01, 1), st.integers(0, 10_000))
def test_cvar_is_the_mean_of_the_worst_share_after_a_sort(n: int, share: float, seed: int) -> None:
    scores, groups = batch_of(np.random.default_rng(seed), [-1] * n)
    worst, left, total = sorted(losses_of(scores), reverse=True), share * n, 0.0
    for loss in worst:
        total, left = total + min(1.0, left) * loss, max(0.0, left - 1)
    value = CVaRLoss(share)(scores, groups, SIGNS)
    assert value.item() == pytest.approx(total / (share * n), abs=1e-9)


def test_cvar_is_the_mean_for_a_share_of_1_and_raises_only_the_worst() -> None:
    scores, groups = batch_of(np.random.default_rng(5), [0, 1, -1, 2, 0])
    assert CVaRLoss(1.0)(scores, groups, SIGNS).item() == pytest.approx(np.mean(losses_of(scores)))
    leaf = scores.requires_grad_()
    (slope,) = torch.autograd.grad(CVaRLoss(0.4)(leaf, groups, SIGNS), leaf)
    assert (slope[:, 0] < 0).sum() == 2
    assert set(np.argsort(losses_of(scores))[-2:].tolist()) == set(torch.nonzero(slope[:, 0]).flatten().tolist())


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1])
def test_cvar_is_of_a_share(share: float) -> None:
    with pytest.raises(ConfigurationError, match="share must be > 0 and <= 1, got"):
        CVaRLoss(share)


# ── among which items ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fairness", [CVaRLoss(1.0), GroupDROLoss(0.0)])
def test_the_likelihood_is_among_all_items_where_the_recommendation_loss_is(fairness: CVaRLoss | GroupDROLoss) -> None:
    rng = np.random.default_rng(6)
    everything, positives = torch.tensor(rng.normal(0, 1, (6, 9))), torch.arange(6)
    groups, signs, weights = torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([1.0, -1.0]), torch.ones(6)
    among_all = AmongAll(everything, positives, weights)
    sampled = Objective(lambda_=1.0, n=2, mu=3, fairness=fairness)
    softmax = Objective(lambda_=1.0, n=2, mu=3, fairness=fairness, loss=softmax_loss)
    assert (sampled.n_drawn, sampled.needs_all_items) == (3, False)
    assert (softmax.n_drawn, softmax.needs_all_items) == (0, True)
    few = everything[:, :4]
    of_few = sampled.fairness_of(few, groups, signs)
    assert of_few.item() == pytest.approx(np.mean(losses_of(few)))
    of_all = softmax.fairness_of(few, groups, signs, among_all)
    assert of_all.item() == pytest.approx(softmax_loss(*among_all).item())
