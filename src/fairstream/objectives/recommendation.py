"""Recommendation losses: Bayesian personalised ranking, and softmax over sampled or all items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairstream.registry import Registry

Loss = Callable[..., Tensor]
"""scores (B, 1 + n) with the positive in column 0 → scalar.

A loss with an attribute `candidates = "all"` gets (scores (B, n_items), positives (B,), weights (B,)) instead:
the scores of all items, the column of the positive, and the weight of each interaction (1 on average)."""


def bpr_loss(scores: Tensor) -> Tensor:
    """L_rec = −1/|B| Σ_(u,i) 1/n Σ_i' log σ(s_ui − s_ui')   (Section 3.2).

    scores (B, 1 + n), column 0 is the positive → scalar.

    >>> bpr_loss(torch.tensor([[1.0, 1.0]]))
    tensor(0.6931)
    """
    margins = scores[:, :1] - scores[:, 1:]  # (B, n)
    return F.softplus(-margins).mean()  # −log σ(x) = softplus(−x), finite for any x


def sampled_softmax_loss(scores: Tensor) -> Tensor:
    """L_rec = −1/|B| Σ_(u,i) log (e^{s_ui} / (e^{s_ui} + Σ_i' e^{s_ui'})).

    scores (B, 1 + n), column 0 is the positive → scalar.

    >>> sampled_softmax_loss(torch.tensor([[1.0, 1.0]]))
    tensor(0.6931)
    """
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def softmax_loss(scores: Tensor, positives: Tensor, weights: Tensor) -> Tensor:
    """The same with all items of the catalogue as candidates, each interaction weighted.

    scores (B, n_items), positives (B,) columns, weights (B,) of mean 1 → scalar.

    >>> softmax_loss(torch.zeros(1, 4), torch.tensor([2]), torch.ones(1))
    tensor(1.3863)
    """
    return (F.cross_entropy(scores, positives, reduction="none") * weights).mean()


softmax_loss.candidates = "all"  # type: ignore[attr-defined]


def factored_softmax_loss(
    states: Tensor, rows: Tensor, bias: Tensor | None, positives: Tensor, weights: Tensor
) -> Tensor:
    """`softmax_loss` of the scores ⟨states, rows⟩ + bias, in memory that does not grow with their number.

    states (B, d), rows (n_items, d), bias (n_items,), positives (B,), weights (B,) → scalar. The scores of a few
    interactions at a time are computed, and with them the gradient, so that no (B, n_items) matrix is ever kept.

    >>> factored_softmax_loss(torch.zeros(1, 2), torch.zeros(4, 2), None, torch.tensor([2]), torch.ones(1))
    tensor(1.3863)
    """
    bias = rows.new_zeros(len(rows)) if bias is None else bias
    loss: Tensor = _FactoredSoftmax.apply(states, rows, bias, positives, weights)  # type: ignore[no-untyped-call]
    return loss


_SCORES_AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 26}  # on a CPU they fit into the cache


class _FactoredSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, rows: Tensor, bias: Tensor, positives: Tensor, weights: Tensor) -> Tensor:
        of_states, of_rows, of_bias = (torch.zeros_like(part) for part in (states, rows, bias))
        total = states.new_zeros(())
        size = max(1, _SCORES_AT_ONCE.get(states.device.type, 1 << 19) // len(rows))
        parts: Any = (states, of_states, positives, weights.to(states) / len(states))
        for x, dx, target, weight in zip(*(part.split(size) for part in parts), strict=True):
            scores = torch.addmm(bias, x, rows.T)  # (b, n_items)
            log_total = scores.logsumexp(dim=1)
            total += weight @ (log_total - scores.gather(1, target[:, None]).squeeze(1))
            # d loss / d scores = weight · (softmax − 1 at the positive)
            change = scores.sub_(log_total[:, None]).exp_().mul_(weight[:, None])
            change.scatter_add_(1, target[:, None], -weight[:, None])
            torch.mm(change, rows, out=dx)
            of_rows.addmm_(change.T, x)
            of_bias += change.sum(dim=0)
        ctx.save_for_backward(of_states, of_rows, of_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_rows, of_bias = (part * grads[0] for part in ctx.saved_tensors)
        return of_states, of_rows, of_bias, None, None


MEAN_LOSSES = (bpr_loss, sampled_softmax_loss, softmax_loss)  # a batch can be divided or padded

LOSSES: Registry[Loss] = Registry("loss")  # recommendation losses by name
LOSSES.register("bpr", bpr_loss)
LOSSES.register("sampled-softmax", sampled_softmax_loss)
LOSSES.register("softmax", softmax_loss)


def against_all_others(scores: Tensor, positives: Tensor) -> Tensor:
    """Return (B, 2): the positive's score, and log Σ e^s of all other items, as if they were one.

    The softmax of the two is the positive's probability among all items.

    >>> against_all_others(torch.zeros(1, 5), torch.tensor([2])).softmax(dim=1)
    tensor([[0.2000, 0.8000]])
    """
    positive = scores.gather(1, positives[:, None]).squeeze(1)
    total = scores.logsumexp(dim=1)
    # Log of the positive's probability, kept below 0: log of (1 − probability) must stay finite.
    share = (positive - total).clamp(max=-torch.finfo(scores.dtype).eps)
    return torch.stack([positive, total + torch.log(-torch.expm1(share))], dim=1)


def positive_log_likelihood(scores: Tensor) -> Tensor:
    """(B, 1 + n) with the positive in column 0 → (B,) the log of its softmax probability."""
    return scores[:, 0] - scores.logsumexp(dim=1)
