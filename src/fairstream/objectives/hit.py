"""NeuralSort's relaxed permutation, and the differentiable hit made from it. Home of the temperature τ."""

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
        raise ValueError(f"{n} candidates have the ranks 1 to {n}, got {n_rows}")
    # A constant added to all scores does not change P̂. Moving the largest to 0 keeps the differences,
    # which the softmax depends on, from being rounded away next to huge scores.
    s = scores - scores.amax(dim=-1, keepdim=True).detach()
    distance = (s.unsqueeze(-1) - s.unsqueeze(-2)).abs().sum(dim=-1)  # A 1, (..., N)
    k = torch.arange(1, n_rows + 1, dtype=s.dtype, device=s.device)
    logits = (n + 1 - 2 * k).unsqueeze(-1) * s.unsqueeze(-2) - distance.unsqueeze(-2)  # (..., k, N)
    return torch.softmax(logits / tau, dim=-1)


def positive_hit(scores: Tensor, *, tau: float) -> Tensor:
    """DH(C_ui; 1) = P̂[1, :] · Y, the soft chance that the first ranked item is relevant   (Section 3.3).

    The candidates are {i} ∪ N'_ui with the positive, alone relevant, in column 0: (..., 1 + μ) → (...).

    >>> positive_hit(torch.tensor([[3.0, 1.0, 2.0], [1.0, 3.0, 2.0]]), tau=1e-3)
    tensor([1., 0.])
    """
    return relaxed_permutation(scores, tau=tau, n_rows=1)[..., 0, 0]
