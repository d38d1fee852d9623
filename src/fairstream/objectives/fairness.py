"""The fairness losses. Home of the differentiable hit's place in the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from fairstream.errors import ConfigurationError
from fairstream.objectives.approx_ndcg import positive_approx_ndcg
from fairstream.objectives.disparity import Disparity, differentiable_disparity
from fairstream.objectives.hit import positive_hit
from fairstream.objectives.neural_ndcg import positive_neural_ndcg
from fairstream.objectives.softmax import positive_log_likelihood, positive_probability
from fairstream.objectives.statistics import RunningDisparity, check_decay
from fairstream.registry import Registry

Kind = Literal["signed", "absolute"]
Surrogate = Literal["hit", "neural-ndcg", "approx-ndcg", "log-likelihood", "probability"]
FairnessLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""scores (B, 1 + μ) with the positive in column 0, groups (B,) of codes, signs (G,) → scalar.

It may have these attributes:

- `candidates`: "sampled" (the default); "all": the scores are (B, 2), the positive's and log Σ e^s of all other items;
  "as-loss": as the recommendation loss has it.
- `needs_two_groups = False`: it is asked also where a batch has users of less than two groups.
- `needs_advantaged = True`: it reads the signs, and is left out where nobody has said which of three groups or more
  is better served (all signs are 0 then).
- `needs_groups = False`: interactions of users whose group is not known have a part in it.
- `start(n_groups, device)` → the loss of one training, with a state of its own that lives across batches. Keep it in
  tensors that are changed in place: on CUDA the steps are recorded and replayed."""

LEAST_TEMPERATURE = 1e-6
"""Below it 1 / τ is too large for single precision."""
_SURROGATES = {"hit": positive_hit, "neural-ndcg": positive_neural_ndcg, "approx-ndcg": positive_approx_ndcg}
_AMONG_ALL = {"log-likelihood": positive_log_likelihood, "probability": positive_probability}


class SurrogateLoss:
    """What losses of the differentiable disparity have in common; the fields are those of their dataclasses."""

    surrogate: Surrogate
    temperature: float
    ema_decay: float
    statistics: RunningDisparity | None

    @property
    def candidates(self) -> Literal["sampled", "all"]:
        """What a positive is compared with."""
        return "all" if self.surrogate in _AMONG_ALL else "sampled"

    @property
    def needs_two_groups(self) -> bool:
        """Whether a batch with users of one group has nothing to add, not even to the statistics."""
        return self.statistics is None

    def start(self, n_groups: int, device: torch.device) -> Self:
        """The loss of one training, with statistics of its own."""
        if self.ema_decay == 0:
            return self
        return replace(self, statistics=RunningDisparity(n_groups, self.ema_decay, device))  # type: ignore[type-var]

    def disparity(self, scores: Tensor, groups: Tensor, n_groups: int) -> Disparity:
        """DPD of each group in the surrogate: of the batch, or of the statistics after it."""
        if self.surrogate in _AMONG_ALL:
            quality = _AMONG_ALL[self.surrogate](scores)  # (B,)
        else:
            quality = _SURROGATES[self.surrogate](scores, tau=self.temperature)
        if self.statistics is None:
            return differentiable_disparity(quality, groups, n_groups)
        return self.statistics(quality, groups)


@dataclass(frozen=True)
class DisparityLoss(SurrogateLoss):
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
    ema_decay
        The disparity is that of means accumulated across batches, in which an interaction counts this
        much compared with one of the next batch (see `RunningDisparity`); 0: of each batch alone, the paper's.

    Examples
    --------
    >>> scores, groups = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> DisparityLoss()(scores, groups, torch.tensor([1.0, -1.0])) > 0.6931
    tensor(True)

    """

    kind: Kind = "signed"
    surrogate: Surrogate = "hit"
    temperature: float = 3.0
    ema_decay: float = 0.0
    statistics: RunningDisparity | None = None
    """Of one training; `start` makes them."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        check_surrogate(self.surrogate, self.temperature)
        check_decay(self.ema_decay)

    @property
    def needs_advantaged(self) -> bool:
        """Whether it has to know which group is better served: the absolute loss pulls every gap to 0."""
        return self.kind == "signed"

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        return fairness_loss(self.disparity(scores, groups, len(signs)), signs, self.kind)


def check_surrogate(surrogate: str, temperature: float) -> None:
    """Raise a `ConfigurationError` unless there is such a surrogate."""
    if surrogate not in get_args(Surrogate):
        raise ConfigurationError(f"surrogate must be one of {', '.join(get_args(Surrogate))}, got {surrogate!r}")
    if not temperature >= LEAST_TEMPERATURE:
        raise ConfigurationError(f"temperature must be >= {LEAST_TEMPERATURE:g}, got {temperature}")


FAIRNESS_LOSSES: Registry[Callable[..., FairnessLoss]] = Registry("fairness loss")
"""Fairness losses by name: functions of the options (temperature, surrogate, ema_decay …) → loss."""


def fairness_loss(disparity: Disparity, signs: Tensor, kind: Kind = "signed") -> Tensor:
    """L_fair = mean over the groups of −log σ(−a_g DPD_g), or of −log σ(−|DPD_g|)   (Section 3.4).

    signs (G,) holds a_g: +1 for a group that is ahead, which the loss pulls down to the rest, and
    −1 for one that is behind, which it pulls up. For two groups both terms are the paper's
    −log σ(−DPD), and so is their mean.

    The signed loss pushes a disadvantaged group up as long as it is behind and lets go smoothly
    once it is ahead (Proposition 1); the absolute one has a kink at 0. Groups that the batch does
    not show are left out of the mean; without any the loss is 0.

    >>> from fairstream.objectives import differentiable_disparity
    >>> two, signs = differentiable_disparity(torch.tensor([0.0, 0.5]), torch.tensor([0, 1])), torch.tensor([1.0, -1.0])
    >>> fairness_loss(two, signs), fairness_loss(two, signs, "absolute")
    (tensor(0.4741), tensor(0.9741))
    """
    dpd, is_defined = disparity
    terms = F.softplus(signs * dpd if kind == "signed" else dpd.abs())  # −log σ(−x) = softplus(x)
    weight = is_defined.to(terms.dtype)
    return (terms * weight).sum() / weight.sum().clamp(min=1)


def _register(kind: Kind) -> None:
    def make(*, temperature: float, surrogate: Surrogate, ema_decay: float = 0.0, **_: object) -> FairnessLoss:
        return DisparityLoss(kind, surrogate, temperature, ema_decay)

    FAIRNESS_LOSSES.register(kind, make)


for _kind in get_args(Kind):
    _register(_kind)
