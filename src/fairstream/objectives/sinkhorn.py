"""Sinkhorn scaling: rows and columns that sum to 1."""

from __future__ import annotations

from typing import Final

from torch import Tensor

N_ROUNDS: Final = 50
"""As many as NeuralNDCG's authors take at most. Always all of them: when to stop early is a question that a device
would have to be waited for, and that a captured graph cannot ask. Where entries close to 0 make the scaling slow, the
columns of a P̂ of up to 41 candidates are then within 0.01 of 1; rows are scaled last and sum to 1."""

LEAST_SUM: Final = 1e-10
"""Rows and columns of P̂ sum to 1/N or more, so that nothing is divided by 0; scores so far apart that P̂ is rounding
alone must not change that."""


def doubly_stochastic(matrix: Tensor, *, n_rounds: int = N_ROUNDS) -> Tensor:
    """A matrix (..., N, N) of numbers ≥ 0 whose columns, then rows, are divided by their sums, round after round.

    >>> import torch
    >>> doubly_stochastic(torch.tensor([[1.0, 1.0], [1.0, 4.0]]))
    tensor([[0.6667, 0.3333],
            [0.3333, 0.6667]])
    """
    for _ in range(n_rounds):
        matrix = matrix / matrix.sum(dim=-2, keepdim=True).clamp(min=LEAST_SUM)
        matrix = matrix / matrix.sum(dim=-1, keepdim=True).clamp(min=LEAST_SUM)
    return matrix
