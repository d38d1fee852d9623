"""Proposition 1's λ, computed anew at every step."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor


class AutoWeight:
    """λ = max(0, −2 ⟨∇L_rec, ∇DPD⟩ / ‖∇DPD‖²), the one of Proposition 1's proof, for the gradients of a batch.

    With it a small step of gradient descent on L_rec + λ L_fair moves DPD towards 0 wherever the
    recommendation loss causes unfairness (⟨∇L_rec, ∇DPD⟩ < 0); elsewhere λ is 0. `fairstream.theory` has the same
    for vectors. One object belongs to one training: it keeps the mean of the weights it gave.

    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> weight = AutoWeight([w])
    >>> weight(w.sum(), -w[0]), weight(w.sum(), w[0]), weight.mean
    (tensor(2.), tensor(0.), 1.0)
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._total: Tensor | float = 0.0
        self._n_steps = 0

    def __call__(self, l_rec: Tensor, dpd: Tensor) -> Tensor:
        """λ for one batch; its losses can be differentiated again."""
        of_rec, of_dpd = (
            torch.autograd.grad(value, self._parameters, retain_graph=True, allow_unused=True) for value in (l_rec, dpd)
        )
        square = _product(of_dpd, of_dpd, like=dpd)
        sufficient = -2 * _product(of_rec, of_dpd, like=dpd) / torch.where(square > 0, square, 1.0)
        weight = torch.where(square > 0, sufficient.clamp(min=0), 0.0)
        self._total, self._n_steps = self._total + weight, self._n_steps + 1
        return weight

    @property
    def mean(self) -> float:
        """The mean over all steps so far."""
        return float(self._total) / max(1, self._n_steps)


def _product(one: Iterable[Tensor | None], other: Iterable[Tensor | None], *, like: Tensor) -> Tensor:
    """⟨a, b⟩ of two gradients, parameter by parameter; what is not there is 0."""
    parts = [_inner(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return reduce(torch.add, parts, torch.zeros_like(like.detach()))


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Σ a b, where both may be sparse by rows (of which −1, of padding, holds zeros)."""
    if not a.is_sparse and not b.is_sparse:
        return (a * b).sum()
    if not a.is_sparse:
        a, b = b, a
    a = a.coalesce()
    rows, values = a.indices()[0], a.values()
    if not b.is_sparse:
        return (values * b[rows.clamp(min=0)]).sum()
    b = b.coalesce()
    others = b.indices()[0]
    if not len(others):
        return values.new_zeros(())
    at = torch.searchsorted(others, rows).clamp(max=len(others) - 1)
    is_shared = others[at] == rows
    return (values[is_shared] * b.values()[at[is_shared]]).sum()
