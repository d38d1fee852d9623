"""Negatives: distinct items that a user has not had, drawn uniformly and exactly.

No rejection and no user × item matrix. To draw the r-th of the items that are *not* in a user's
sorted list e_0 < e_1 < …, note that e_j has j of the list before it, hence e_j − j free items
before it; the r-th free item is r + #{j : e_j − j ≤ r}. With the lists of all users behind each
other and the user in the upper digits, that count is one binary search for a whole batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairstream.events import SeenItems


class NegativeSampler:
    """Uniform draws without replacement from the first `n_items` rows less the `excluded` ones.

    What is excluded decides the protocol: what the user has had so far (point in time), or what
    it will ever have (the paper's leak).
    """

    def __init__(self, excluded: SeenItems, *, n_users: int, n_items: int, device: torch.device | str = "cpu") -> None:
        excluded = excluded.below(n_items)
        bounds = torch.from_numpy(excluded.bounds(n_users))
        users, items = torch.from_numpy(excluded.users), torch.from_numpy(excluded.items)
        keep = users < n_users
        users, items = users[keep], items[keep]
        free_before = items - (torch.arange(len(items)) - bounds[users])  # e_j − j
        self._stride = n_items + 1
        self._keys = (users * self._stride + free_before).to(device)
        self._start = bounds[:-1].to(device)
        self._n_free = (n_items - bounds.diff()).to(device)

    def n_free(self, users: Tensor) -> Tensor:
        """(B,) how many items can be drawn for each user."""
        return self._n_free[users]

    def draw(self, users: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """(B, n) distinct items for each user, in random order; −1 where a user has fewer than n."""
        ranks = _distinct(self._n_free[users], n, generator)  # (B, n)
        wanted = users[:, None] * self._stride + ranks.clamp(min=0)
        skipped = torch.searchsorted(self._keys, wanted, right=True) - self._start[users][:, None]
        return torch.where(ranks < 0, ranks, ranks + skipped)


def _distinct(available: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """(B, n) distinct integers below `available` (B,), each ordered n-tuple equally likely.

    Floyd's algorithm, a column at a time: column c draws from 0 … j with j = available − n + c,
    and takes j itself where the draw is already taken. The set is uniform; a shuffle makes the
    order so too. Columns with j < 0 have nothing left to draw and hold −1.
    """
    size, device = available.shape[0], available.device
    uniform = torch.rand(size, n, dtype=torch.float64, device=device, generator=generator)
    top = available[:, None] - n + torch.arange(n, device=device)  # j, (B, n)
    draws = torch.where(top < 0, -1, (uniform * (top + 1)).long())  # 0 … j
    chosen = torch.full((size, n), -1, dtype=torch.int64, device=device)
    for c in range(n):
        taken = (chosen[:, :c] == draws[:, c : c + 1]).any(dim=1)
        chosen[:, c] = torch.where(taken, top[:, c], draws[:, c])
    chosen = torch.where(top < 0, -1, chosen)
    order = torch.rand(size, n, device=device, generator=generator).argsort(dim=1)
    return chosen.gather(1, order)
