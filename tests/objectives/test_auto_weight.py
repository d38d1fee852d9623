"""Proposition 1's λ at every step: the theory's formula, and the property that it is made for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fairstream.errors import ConfigurationError
from fairstream.objectives import AutoWeight, DisparityLoss, LargestGapLoss, Objective
from fairstream.theory import sufficient_fairness_weight

CPU = torch.device("cpu")
SIGNS = torch.tensor([1.0, -1.0], dtype=torch.float64)


class Small(nn.Module):
    """A factorisation of a few users and items, by embeddings whose gradients may be sparse."""

    def __init__(self, seed: int, *, sparse: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.user, self.item = (
            nn.Embedding(n, 3, sparse=sparse, _weight=torch.randn(n, 3, generator=generator, dtype=torch.float64))
            for n in (6, 9)
        )
        users = torch.cat([torch.tensor([0, 1]), torch.randint(6, (10,), generator=generator)])
        self.users, self.groups = users, torch.tensor([0, 1, 0, 1, 0, -1])[users]
        self.items = torch.stack([torch.randperm(9, generator=generator)[:4] for _ in users])

    def forward(self) -> Tensor:
        return torch.einsum("bd,bcd->bc", self.user(self.users), self.item(self.items))

    def flat(self, value: Tensor) -> np.ndarray[Any, Any]:
        """The gradient as one vector."""
        grads = torch.autograd.grad(value, list(self.parameters()), retain_graph=True)
        return torch.cat([grad.to_dense().flatten() for grad in grads]).numpy()


def objective_of(model: Small, kind: str = "signed", decay: float = 0.0) -> Objective:
    fairness = DisparityLoss(kind, temperature=1.0, ema_decay=decay)
    return Objective(lambda_=0.0, n=2, mu=3, fairness=fairness, is_auto=True).start(model.parameters(), 2, CPU)


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from(["signed", "absolute"]), st.booleans())
def test_it_is_the_theorys_and_a_small_step_moves_dpd_towards_0(
    seed: int, sparse: bool, kind: str, is_first_ahead: bool
) -> None:
    model = Small(seed, sparse=sparse)
    signs = SIGNS if is_first_ahead else -SIGNS
    objective = objective_of(model, kind)
    scores = model()
    plain = Objective(lambda_=0.0, n=2, mu=3)
    l_rec = plain(scores, model.groups, signs, has_two_groups=True)
    dpd = signs[0] * DisparityLoss(temperature=1.0).disparity(scores, model.groups, 2).dpd[0]
    of_rec, of_dpd = model.flat(l_rec), model.flat(dpd)
    total = objective(scores, model.groups, signs, has_two_groups=True)
    lambda_ = objective.mean_weight
    assert lambda_ == pytest.approx(max(0.0, sufficient_fairness_weight(of_rec, of_dpd)), rel=1e-9)
    l_fair = DisparityLoss(kind, temperature=1.0)(scores, model.groups, signs)
    assert total.item() == pytest.approx((l_rec + lambda_ * l_fair).item())
    step = -model.flat(total)
    if of_rec @ of_dpd > 0:
        assert lambda_ == 0
        np.testing.assert_allclose(step, -of_rec)
    else:
        slope = step @ of_dpd  # lim (DPD(w + η step) − DPD(w)) / η
        assert math.copysign(1, dpd.item()) * slope <= 1e-12 * np.linalg.norm(of_rec) * np.linalg.norm(of_dpd)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [15, 35, 37])
def test_where_training_widens_the_gap_small_steps_with_it_narrow_the_gap(seed: int) -> None:
    def dpd_after(n_steps: int, *, is_auto: bool) -> float:
        model = Small(seed, sparse=False)
        objective = objective_of(model) if is_auto else Objective(lambda_=0.0, n=2, mu=3)
        for _ in range(n_steps):
            loss = objective(model(), model.groups, SIGNS, has_two_groups=True)
            for parameter, grad in zip(
                model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
            ):
                parameter.data -= 0.02 * grad
        return DisparityLoss(temperature=1.0).disparity(model(), model.groups, 2).dpd[0].item()

    start, plain, auto = dpd_after(0, is_auto=True), dpd_after(100, is_auto=False), dpd_after(100, is_auto=True)
    assert plain > start > 0  # the recommendation loss causes unfairness
    assert 0 < auto < start


def test_it_is_0_where_dpd_has_no_gradient() -> None:
    w = torch.tensor([1.0], requires_grad=True)
    weight = AutoWeight([w])
    assert weight(w.sum(), 0 * w.sum()) == 0


def test_gradients_sparse_by_rows_count_where_rows_are_shared() -> None:
    table = nn.Embedding(6, 2, sparse=True, _weight=torch.arange(12.0).reshape(6, 2))
    one, other = table(torch.tensor([4, 1, 1])).sum(), table(torch.tensor([1, 5])).sum()
    weight, dense = AutoWeight([table.weight]), AutoWeight([table.weight])
    assert weight(-one, other) == pytest.approx(2 * 2 * 2 / 4)  # 2 ⟨(2, 2), (1, 1)⟩ / 4: row 1 alone
    by_product = (table.weight * torch.tensor([0.0, 1, 0, 0, 0, 1])[:, None]).sum()
    assert dense(-one, by_product) == weight(-one, other)
    assert weight(table(torch.tensor([0])).sum(), other) == 0


def test_more_than_two_groups_and_other_losses_are_refused() -> None:
    auto = Objective(lambda_=0.0, n=2, mu=3, is_auto=True)
    with pytest.raises(ConfigurationError, match="for two groups; there are 3, so give a number"):
        auto.start([], 3, CPU)
    other = Objective(lambda_=0.0, n=2, mu=3, is_auto=True, fairness=LargestGapLoss())
    with pytest.raises(ConfigurationError, match="goes with the fairness losses signed and absolute"):
        other.start([], 2, CPU)
