"""The two networks of Adver: one takes the group out of a user's embedding, the other tries to find it again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch.nn.functional as F
from torch import Tensor, nn

from fairstream.data import UNKNOWN

DROPOUT: Final = 0.3
_HIDDEN: Final = (128, 256, 128, 128, 64, 32)
_SLOPE: Final = 0.2


class Filter(nn.Module):
    """f(p_u): d → 2d → d, a leaky ReLU after each layer, batch norm at the end.

    >>> import torch
    >>> tuple(Filter(8)(torch.zeros(5, 8)).shape)
    (5, 8)
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d, 2 * d), nn.LeakyReLU(), nn.Linear(2 * d, d), nn.LeakyReLU())
        self.norm = nn.BatchNorm1d(d)

    def forward(self, rows: Tensor) -> Tensor:
        """(B, d) → (B, d)."""
        hidden = self.layers(rows)
        if len(rows) > 1:
            return self.norm(hidden)
        # A batch of one has no variance to be divided by; it is measured by what has been seen so far.
        norm = self.norm
        return F.batch_norm(hidden, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


class Discriminator(nn.Module):
    """D(f(p_u)): which group a filtered embedding belongs to. Seven layers, leaky ReLUs, dropout.

    >>> import torch
    >>> discriminator = Discriminator(8)
    >>> discriminator.grow(3)
    >>> tuple(discriminator(torch.zeros(5, 8)).shape)
    (5, 3)
    """

    def __init__(self, d: int, *, dropout: float = DROPOUT) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise((d, *_HIDDEN)):
            layers += [nn.Linear(n_in, n_out), nn.LeakyReLU(_SLOPE), nn.Dropout(dropout)]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(_HIDDEN[-1], 2)

    def forward(self, rows: Tensor) -> Tensor:
        """(B, d) → one logit per group (B, G)."""
        return self.head(self.hidden(rows))

    def loss(self, rows: Tensor, codes: Tensor) -> Tensor:
        """L_D: the cross-entropy over the users whose group is known; there has to be one."""
        return F.cross_entropy(self(rows), codes, ignore_index=UNKNOWN)

    def grow(self, n_groups: int) -> None:
        """Make room for groups that have newly appeared.

        Their weights start from 0 and the parameters stay the same objects: what appears later
        changes no draw and no optimizer.
        """
        head, n_new = self.head, n_groups - self.head.out_features
        if n_new > 0:
            head.weight.data = F.pad(head.weight.data, (0, 0, 0, n_new))
            head.bias.data = F.pad(head.bias.data, (0, n_new))
            head.out_features = n_groups

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A checkpoint may know more groups than a fresh network does."""
        if (stored := state_dict.get(f"{prefix}head.bias")) is not None:
            self.grow(len(stored))
        super()._load_from_state_dict(state_dict, prefix, *rest)
