"""The relaxed permutation matrix of NeuralSort. Home of the temperature τ."""

from __future__ import annotations

import torch
from torch import Tensor


def relaxed_permutation(scores: Tensor, *, tau: float, n_rows: int | None = None) -> Tensor:
    """P̂[k, :] = softmax(((N + 1 − 2k) s − A 1) / τ),  A[i, j] = |s_i − s_j|   (Eq. of P̂, Section 3.3).

    scores (..., N) → (..., n_rows, N); row k − 1 holds the probabilities of being ranked k-th,
    for k = 1 … n_rows (all N where n_rows is None). As τ → 0 it becomes the permutation matrix
    of the descending sort.

    >>> relaxed_permutation(torch.tensor([1.0, 3.0, 2.0]), tau=1e-3)
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """
    n = scores.shape[-1]
    n_rows = n if n_rows is None else n_rows
    if not 1 <= n_rows <= n:
        raise ValueError(f"there are ranks 1 to {n} among {n} candidates, but {n_rows} were asked for")
    # Adding a constant to all scores changes nothing in P̂, so the largest is moved to 0: the
    # differences that the softmax lives on are then not rounded away next to huge scores.
    s = scores - scores.amax(dim=-1, keepdim=True).detach()
    distance = (s.unsqueeze(-1) - s.unsqueeze(-2)).abs().sum(dim=-1)  # A 1, (..., N)
    k = torch.arange(1, n_rows + 1, dtype=s.dtype, device=s.device)
    logits = (n + 1 - 2 * k).unsqueeze(-1) * s.unsqueeze(-2) - distance.unsqueeze(-2)  # (..., k, N)
    return torch.softmax(logits / tau, dim=-1)
