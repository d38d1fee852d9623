"""The fairness losses. Home of the differentiable hit's place in the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from fairstream.errors import ConfigurationError
from fairstream.objectives.approx_ndcg import positive_approx_ndcg
from fairstream.objectives.disparity import Disparity, differentiable_disparity
from fairstream.objectives.hit import positive_hit
from fairstream.objectives.neural_ndcg import positive_neural_ndcg
from fairstream.objectives.softmax import positive_log_likelihood, positive_probability
from fairstream.registry import Registry

Kind = Literal["signed", "absolute"]
Surrogate = Literal["hit", "neural-ndcg", "approx-ndcg", "log-likelihood", "probability"]
FairnessLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""scores (B, 1 + μ) with the positive in column 0, groups (B,) of codes, signs (G,) → scalar.

With an attribute `candidates = "all"` the scores are (B, 2): the positive's, and log Σ e^s of all other items."""

LEAST_TEMPERATURE = 1e-6
"""Below it 1 / τ is too large for single precision."""
_SURROGATES = {"hit": positive_hit, "neural-ndcg": positive_neural_ndcg, "approx-ndcg": positive_approx_ndcg}
_AMONG_ALL = {"log-likelihood": positive_log_likelihood, "probability": positive_probability}


@dataclass(frozen=True)
class DisparityLoss:
    """L_fair of the paper: the differentiable disparity of a surrogate of each user's quality   (Section 3.4).

    Parameters
    ----------
    kind
        "signed" (FADE) or "absolute" (FADE-Abs).
    surrogate
        What stands for the quality of a user's ranking: "hit" (the paper's Differentiable Hit),
        "neural-ndcg" or "approx-ndcg", among μ negatives; "log-likelihood" or "probability" of the
        positive, among all items.
    temperature
        τ of the relaxed ranking; a likelihood has none.

    Examples
    --------
    >>> import torch
    >>> scores, groups = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> DisparityLoss()(scores, groups, torch.tensor([1.0, -1.0])) > 0.6931
    tensor(True)

    """

    kind: Kind = "signed"
    surrogate: Surrogate = "hit"
    temperature: float = 3.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.surrogate not in get_args(Surrogate):
            known = ", ".join(get_args(Surrogate))
            raise ConfigurationError(f"surrogate must be one of {known}, got {self.surrogate!r}")
        if not self.temperature >= LEAST_TEMPERATURE:
            raise ConfigurationError(f"temperature must be >= {LEAST_TEMPERATURE:g}, got {self.temperature}")

    @property
    def candidates(self) -> Literal["sampled", "all"]:
        """What a positive is compared with."""
        return "all" if self.surrogate in _AMONG_ALL else "sampled"

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        if self.surrogate in _AMONG_ALL:
            quality = _AMONG_ALL[self.surrogate](scores)  # (B,)
        else:
            quality = _SURROGATES[self.surrogate](scores, tau=self.temperature)
        return fairness_loss(differentiable_disparity(quality, groups, len(signs)), signs, self.kind)


FAIRNESS_LOSSES: Registry[Callable[..., FairnessLoss]] = Registry("fairness loss")
"""Fairness losses by name: functions (temperature, surrogate) → loss."""


def fairness_loss(disparity: Disparity, signs: Tensor, kind: Kind = "signed") -> Tensor:
    """L_fair = mean over the groups of −log σ(−a_g DPD_g), or of −log σ(−|DPD_g|)   (Section 3.4).

    signs (G,) holds a_g: +1 for a group that is ahead, which the loss pulls down to the rest, and
    −1 for one that is behind, which it pulls up. For two groups both terms are the paper's
    −log σ(−DPD), and so is their mean.

    The signed loss pushes a disadvantaged group up as long as it is behind and lets go smoothly
    once it is ahead (Proposition 1); the absolute one has a kink at 0. Groups that the batch does
    not show are left out of the mean; at least one must be defined.

    >>> import torch
    >>> from fairstream.objectives import differentiable_disparity
    >>> two, signs = differentiable_disparity(torch.tensor([0.0, 0.5]), torch.tensor([0, 1])), torch.tensor([1.0, -1.0])
    >>> fairness_loss(two, signs), fairness_loss(two, signs, "absolute")
    (tensor(0.4741), tensor(0.9741))
    """
    dpd, is_defined = disparity
    terms = F.softplus(signs * dpd if kind == "signed" else dpd.abs())  # −log σ(−x) = softplus(x)
    weight = is_defined.to(terms.dtype)
    return (terms * weight).sum() / weight.sum()


def _register() -> None:
    def of(kind: Kind) -> Callable[..., FairnessLoss]:
        return lambda temperature, surrogate: DisparityLoss(kind, surrogate, temperature)

    FAIRNESS_LOSSES.register("signed", of("signed"))
    FAIRNESS_LOSSES.register("absolute", of("absolute"))


_register()
