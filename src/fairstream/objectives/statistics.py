"""Means of groups that are accumulated across the batches of one training."""

from __future__ import annotations

import torch
from torch import Tensor

from fairstream.errors import ConfigurationError
from fairstream.objectives.disparity import Disparity, differentiable_disparity


class RunningMeans:
    """The mean of a quantity over the interactions of each group, in this batch and those before it.

        n_g ← β n_g + |B_g|,    m_g ← m_g + (Σ_{B_g} x − |B_g| m_g) / n_g

    An interaction counts β times as much as one of the next batch. A group that a batch does not show keeps
    its mean. The state is in tensors that are changed in place, so that a CUDA graph can record an update.

    >>> means = RunningMeans(2, decay=0.5, device=torch.device("cpu"))
    >>> means.update(torch.tensor([1.0, 0.0]), torch.tensor([0, 1]))
    >>> means.update(torch.tensor([0.0]), torch.tensor([0]))
    >>> means.mean, means.n
    (tensor([0.3333, 0.0000], dtype=torch.float64), tensor([1.5000, 0.5000], dtype=torch.float64))
    """

    def __init__(self, n_groups: int, decay: float, device: torch.device) -> None:
        self._decay = decay
        self.mean = torch.zeros(n_groups, dtype=torch.float64, device=device)
        """(G,)"""
        self.n = torch.zeros_like(self.mean)
        """(G,) how many interactions each mean stands for; 0 for a group that has not been seen."""

    @torch.no_grad()
    def update(self, values: Tensor, groups: Tensor) -> None:
        """Add a batch: values (B,), groups (B,) of codes, −1 where the group is not known."""
        codes = torch.arange(len(self.mean), dtype=groups.dtype, device=groups.device)
        inside = (groups[:, None] == codes).to(self.mean.dtype)  # (B, G)
        n_inside = inside.sum(dim=0)
        self.n.mul_(self._decay).add_(n_inside)
        total = (values.to(self.mean.dtype)[:, None] * inside).sum(dim=0)
        # Where n has faded to 0 the group is not in the batch either, and nothing is added.
        self.mean.add_((total - n_inside * self.mean) / torch.where(self.n > 0, self.n, 1.0))


class RunningDisparity:
    """DPD of each group from running means: the mean over batches of a function of it is nearly unbiased.

    The loss of a batch is not linear in the groups' means, so that its mean over small batches is not the
    loss of all data (Jensen's inequality). Here its value is that of the accumulated means, and its gradient
    goes through the means of the current batch ("straight-through"), as it would if they were the same.
    """

    def __init__(self, n_groups: int, decay: float, device: torch.device) -> None:
        self._means = RunningMeans(n_groups, decay, device)

    def __call__(self, quality: Tensor, groups: Tensor) -> Disparity:
        """DPD (G,) of all groups seen so far; that of a group which the batch does not show has no gradient."""
        self._means.update(quality.detach(), groups)
        mean, n = self._means.mean, self._means.n
        rest = n.sum() - n
        outside = ((n * mean).sum() - n * mean) / torch.where(rest > 0, rest, 1.0)
        accumulated = (mean - outside).to(quality.dtype)
        of_batch, is_in_batch = differentiable_disparity(quality, groups, len(mean))
        through = torch.where(is_in_batch, of_batch - of_batch.detach(), 0.0)  # 0, with the batch's gradient
        return Disparity(accumulated + through, (n > 0) & (rest > 0))


def check_decay(decay: float) -> None:
    """Raise a `ConfigurationError` unless it is one of an exponential moving average."""
    if not 0 <= decay < 1:
        raise ConfigurationError(f"ema_decay must be >= 0 and < 1, got {decay}")
