"""Group DRO against an adversary written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fairstream.objectives import AmongAll, GroupDROLoss, Objective, softmax_loss
from fairstream.objectives.group_dro import GroupWeights

CPU = torch.device("cpu")
SIGNS = torch.tensor([1.0, -1.0, -1.0])


def batch_of(rng: np.random.Generator, codes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(rng.normal(0, 1, (len(codes), 4))), torch.tensor(codes)


def losses_of(scores: torch.Tensor) -> list[float]:
    """−log softmax of column 0, number by number."""
    return [math.log(sum(math.exp(s) for s in row)) - row[0] for row in scores.tolist()]


def test_a_group_that_is_seen_late_begins_with_the_mean_weight() -> None:
    """However long the others have lost as much as it does."""
    weights = GroupWeights(3, 0.5, CPU, decay=0.0)
    for _ in range(50):
        weights.update(torch.ones(4), torch.tensor([0, 0, 1, 1]))
    q = weights.update(torch.ones(3), torch.tensor([0, 1, 2]))
    assert q.tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_the_weights_are_those_of_exponentiated_gradient_ascent(decay: float) -> None:
    """All groups in all batches: q_g ← q_g exp(η ℓ̂_g) / Σ, with ℓ̂ the running mean of each group's loss."""
    rng, eta = np.random.default_rng(0), 0.7
    loss = GroupDROLoss(eta, weights=GroupWeights(3, eta, CPU, decay))
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


def test_a_group_that_a_batch_does_not_show_counts_by_its_last_mean() -> None:
    rng = np.random.default_rng(1)
    loss = GroupDROLoss(0.5).start(3, CPU)
    bad = torch.tensor([[-4.0, 0.0], [2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    loss(bad, torch.tensor([0, 1, 2]), SIGNS)
    assert loss.weights is not None
    before = loss.weights.theta.clone()
    for _ in range(3):
        loss(*batch_of(rng, [1, 2]), SIGNS)
    assert loss.weights.theta[0] > before[0]


def test_a_group_that_appears_late_begins_with_the_mean_weight() -> None:
    loss = GroupDROLoss(0.0).start(3, CPU)
    two = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    first, second = losses_of(two)
    assert loss(two, torch.tensor([0, 2]), SIGNS).item() == pytest.approx((first + second) / 2)
    three = torch.cat([two, two[:1]])
    assert loss(three, torch.tensor([0, 2, 1]), SIGNS).item() == pytest.approx((2 * first + second) / 3)


def test_the_order_of_the_groups_does_not_matter() -> None:
    rng, order = np.random.default_rng(2), torch.tensor([2, 0, 1])
    one, other = (GroupDROLoss(0.5).start(3, CPU) for _ in range(2))
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


# ── among which items ────────────────────────────────────────────────────────────────────


def test_the_likelihood_is_among_all_items_where_the_recommendation_loss_is() -> None:
    fairness = GroupDROLoss(0.0)
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
