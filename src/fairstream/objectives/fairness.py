"""Fairness losses of the differentiable performance disparity: signed and absolute (the paper's), and largest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Final, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from fairstream.errors import ConfigurationError
from fairstream.objectives.hit import positive_hit
from fairstream.objectives.recommendation import positive_log_likelihood
from fairstream.registry import Registry

Kind = Literal["signed", "absolute"]
FairnessLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""scores (B, 1 + μ) with the positive in column 0, groups (B,) of codes, signs (G,) → scalar.

It may have these attributes:

- `candidates`: "sampled" (the default); "all": the scores are (B, 2), the positive's and log Σ e^s of all other items;
  "as-loss": the same as for the recommendation loss.
- `needs_two_groups = False`: it is also computed for batches with users of fewer than two groups.
- `needs_advantaged = True`: it reads the signs, and is left out where nobody has named the best-served one of three
  groups or more (all signs are 0 then).
- `start(n_groups, device)` → the loss of one training, with state that lives across batches. Keep the state in
  tensors that are changed in place: on CUDA the steps are recorded and replayed."""
Surrogate = Callable[..., Tensor]
"""(scores, *, tau) → (B,): a differentiable stand-in for the quality of a user's ranking. scores are (B, 1 + μ), or
(B, 2) for a surrogate with the attribute `candidates = "all"`, as for a `FairnessLoss`."""

MIN_TEMPERATURE: Final = 1e-6  # below it 1 / τ is too large for single precision
DECAY: Final = 0.95  # weight of an interaction, relative to one of the next batch, in means across batches


def _log_likelihood(scores: Tensor, *, tau: float) -> Tensor:
    return positive_log_likelihood(scores)


_log_likelihood.candidates = "all"  # type: ignore[attr-defined]

SURROGATES: Registry[Surrogate] = Registry("surrogate")
"""Surrogates by name. The paper compares its differentiable hit with two others."""
SURROGATES.register("hit", positive_hit)
SURROGATES.register("log-likelihood", _log_likelihood)
SURROGATES.defer("fairstream.paper.surrogates", "neural-ndcg", "approx-ndcg")


# ── the disparity ────────────────────────────────────────────────────────────────────────────


class Disparity(NamedTuple):
    """DPD of each group, and for which groups it is defined."""

    dpd: Tensor  # (G,)
    is_defined: Tensor  # (G,) whether there are users of the group and users of the rest; if not, dpd is void


def differentiable_disparity(dh: Tensor, groups: Tensor, n_groups: int = 2) -> Disparity:
    """DPD_g = mean of DH over {B | a = g} − mean of DH over {B | a ≠ g}   (Section 3.4, each group to the rest).

    dh (B,), groups (B,) of codes → (G,). For two groups this is the paper's DPD for code 0 and
    −DPD for code 1, exactly. Interactions of users of unknown group have no part in it.

    >>> differentiable_disparity(torch.tensor([0.9, 0.7, 0.5]), torch.tensor([0, 0, 1])).dpd
    tensor([ 0.3000, -0.3000])
    """
    inside = groups[:, None] == torch.arange(n_groups, dtype=groups.dtype, device=groups.device)  # (B, G)
    outside = (groups >= 0)[:, None] & ~inside
    (mean_inside, n_inside), (mean_outside, n_outside) = _means(dh, inside), _means(dh, outside)
    return Disparity(mean_inside - mean_outside, (n_inside > 0) & (n_outside > 0))


def _means(values: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of `values` over each column's members, and their number."""
    weight = members.to(values.dtype)
    n = weight.sum(dim=0)
    return (values[:, None] * weight).sum(dim=0) / n.clamp(min=1), n


class RunningMeans:
    """The mean of a quantity over the interactions of each group, in this batch and those before it.

        n_g ← β n_g + |B_g|,    m_g ← m_g + (Σ_{B_g} x − |B_g| m_g) / n_g

    An interaction counts β times as much as one of the next batch. A group that a batch does not show keeps
    its mean. The state is in tensors that are changed in place, so that a CUDA graph can record an update.

    >>> means = RunningMeans(2, torch.device("cpu"), decay=0.5)
    >>> means.update(torch.tensor([1.0, 0.0]), torch.tensor([0, 1]))
    >>> means.update(torch.tensor([0.0]), torch.tensor([0]))
    >>> means.mean, means.n
    (tensor([0.3333, 0.0000], dtype=torch.float64), tensor([1.5000, 0.5000], dtype=torch.float64))
    """

    def __init__(self, n_groups: int, device: torch.device, decay: float = DECAY) -> None:
        self._decay = decay
        self.mean = torch.zeros(n_groups, dtype=torch.float64, device=device)  # (G,)
        self.n = torch.zeros_like(self.mean)  # (G,) the number of interactions behind each mean; 0 for an unseen group

    @torch.no_grad()
    def update(self, values: Tensor, groups: Tensor) -> None:
        """Add a batch: values (B,), groups (B,) of codes, −1 where the group is unknown."""
        codes = torch.arange(len(self.mean), dtype=groups.dtype, device=groups.device)
        inside = (groups[:, None] == codes).to(self.mean.dtype)  # (B, G)
        n_inside = inside.sum(dim=0)
        self.n.mul_(self._decay).add_(n_inside)
        total = (values.to(self.mean.dtype)[:, None] * inside).sum(dim=0)
        # Where n has faded to 0 the group is not in the batch either, and nothing is added.
        self.mean.add_((total - n_inside * self.mean) / torch.where(self.n > 0, self.n, 1.0))


class RunningDisparity(RunningMeans):
    """DPD of each group from running means: the mean over batches of a function of it is nearly unbiased.

    The loss of a batch is not linear in the groups' means, so its mean over small batches is not the
    loss of all data (Jensen's inequality). Here its value is that of the accumulated means, and its gradient
    flows through the means of the current batch ("straight-through"), as if they were the same.
    """

    def __call__(self, quality: Tensor, groups: Tensor) -> Disparity:
        """DPD (G,) of all groups seen so far; a group that the batch does not show has no gradient."""
        self.update(quality.detach(), groups)
        mean, n = self.mean, self.n
        rest = n.sum() - n
        outside = ((n * mean).sum() - n * mean) / torch.where(rest > 0, rest, 1.0)
        accumulated = (mean - outside).to(quality.dtype)
        of_batch, is_in_batch = differentiable_disparity(quality, groups, len(mean))
        through = torch.where(is_in_batch, of_batch - of_batch.detach(), 0.0)  # 0, with the batch's gradient
        return Disparity(accumulated + through, (n > 0) & (rest > 0))


# ── the losses ───────────────────────────────────────────────────────────────────────────────


def check_weight(weight: float, n_negatives: int) -> None:
    """Raise a ConfigurationError unless λ ≥ 0 and μ ≥ 1."""
    if not (isinstance(weight, float | int) and 0 <= weight < math.inf):
        raise ConfigurationError(f"the weight of a fairness loss must be a number >= 0, got {weight!r}")
    if not (isinstance(n_negatives, int) and n_negatives >= 1):
        raise ConfigurationError(f"n_negatives must be a whole number >= 1, got {n_negatives!r}")


class _SurrogateLoss:
    """What the losses of the differentiable disparity share; the fields are those of their dataclasses."""

    surrogate: str
    temperature: float
    weight: float
    n_negatives: int

    def __post_init__(self) -> None:
        check_weight(self.weight, self.n_negatives)
        SURROGATES.canonical(self.surrogate)
        if not (isinstance(self.temperature, float | int) and MIN_TEMPERATURE <= self.temperature < math.inf):
            raise ConfigurationError(f"temperature must be >= {MIN_TEMPERATURE:g}, got {self.temperature!r}")

    @property
    def candidates(self) -> Literal["sampled", "all"]:
        """The items that a positive is compared with."""
        return getattr(SURROGATES[self.surrogate], "candidates", "sampled")

    def quality(self, scores: Tensor) -> Tensor:
        """(B,) the surrogate of each interaction."""
        return SURROGATES[self.surrogate](scores, tau=self.temperature)


@dataclass(frozen=True)
class DisparityLoss(_SurrogateLoss):
    """L_fair of the paper: the differentiable disparity of a surrogate of each user's quality   (Section 3.4).

    Parameters
    ----------
    kind
        "signed" (FADE) or "absolute" (FADE-Abs).
    surrogate
        What stands for the quality of a user's ranking: "hit" (the paper's Differentiable Hit) among μ negatives,
        "log-likelihood" of the positive among all items, or another name in `SURROGATES`.
    temperature
        τ of the relaxed ranking; a likelihood has none.
    weight
        λ, the weight of the loss next to the recommendation loss.
    n_negatives
        μ, negative items per interaction.

    Examples
    --------
    >>> scores, groups = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> DisparityLoss()(scores, groups, torch.tensor([1.0, -1.0])) > 0.6931
    tensor(True)

    """

    kind: Kind = "signed"
    surrogate: str = "hit"
    temperature: float = 3.0
    weight: float = 0.5
    n_negatives: int = 4

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        super().__post_init__()

    @property
    def name(self) -> str:
        return self.kind

    @property
    def needs_advantaged(self) -> bool:
        """Whether it must know which group is better served: the absolute loss pulls every gap to 0."""
        return self.kind == "signed"

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        disparity = differentiable_disparity(self.quality(scores), groups, len(signs))
        return fairness_loss(disparity, signs, self.kind)


def fairness_loss(disparity: Disparity, signs: Tensor, kind: Kind = "signed") -> Tensor:
    """L_fair = mean over the groups of −log σ(−a_g DPD_g), or of −log σ(−|DPD_g|)   (Section 3.4).

    signs (G,) holds a_g: +1 for a group that is ahead, which the loss pulls down to the rest, and
    −1 for one that is behind, which it pulls up. For two groups both terms are the paper's
    −log σ(−DPD), and so is their mean.

    The signed loss pushes a disadvantaged group up as long as it is behind and lets go smoothly
    once it is ahead (Proposition 1); the absolute one has a kink at 0. Groups that the batch does
    not show are left out of the mean; without any the loss is 0.

    >>> two, signs = differentiable_disparity(torch.tensor([0.0, 0.5]), torch.tensor([0, 1])), torch.tensor([1.0, -1.0])
    >>> fairness_loss(two, signs), fairness_loss(two, signs, "absolute")
    (tensor(0.4741), tensor(0.9741))
    """
    dpd, is_defined = disparity
    terms = F.softplus(signs * dpd if kind == "signed" else dpd.abs())  # −log σ(−x) = softplus(x)
    weight = is_defined.to(terms.dtype)
    return (terms * weight).sum() / weight.sum().clamp(min=1)


@dataclass(frozen=True)
class LargestGapLoss(_SurrogateLoss):
    """Narrows the gap of the group that is furthest behind the rest, for any number of groups.

    The signed loss pushes every group by the same slope, whatever its gap, and for many groups these
    pushes cancel. This one pushes the groups that are behind; the declared advantaged group has no
    part in it. For two groups it is T log cosh(DPD / T), the absolute DPD with a round bottom: it pulls
    the group behind up and the group ahead down, and lets go at 0. In a training, means accumulated
    across batches decide which group is behind (see `RunningDisparity`).

    Parameters
    ----------
    surrogate, temperature
        What stands for the quality of a user's ranking, as in `DisparityLoss`.
    softness
        T, in units of the surrogate: groups whose gaps differ by less are pushed nearly equally.
    weight, n_negatives
        λ and μ, as in `DisparityLoss`.

    Examples
    --------
    >>> scores, groups = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1, 2])
    >>> scores.requires_grad_()
    tensor([[2., 0.],
            [1., 0.],
            [0., 1.]], requires_grad=True)
    >>> LargestGapLoss()(scores, groups, torch.tensor([1.0, -1.0, -1.0])).backward()
    >>> scores.grad[:, 0].sign()  # the last group is behind and pushed up
    tensor([ 1.,  1., -1.])

    """

    surrogate: str = "hit"
    temperature: float = 3.0
    softness: float = 0.02
    weight: float = 0.5
    n_negatives: int = 4
    name: ClassVar[str] = "largest"
    statistics: RunningDisparity | None = None  # of one training; `start` makes them
    needs_two_groups: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.softness > 0:
            raise ConfigurationError(f"softness must be > 0, got {self.softness}")

    def start(self, n_groups: int, device: torch.device) -> LargestGapLoss:
        """Return the loss of one training, with its own statistics."""
        return replace(self, statistics=RunningDisparity(n_groups, device))

    def __call__(self, scores: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
        quality = self.quality(scores)
        if self.statistics is None:
            return largest_gap_loss(differentiable_disparity(quality, groups, len(signs)), self.softness)
        return largest_gap_loss(self.statistics(quality, groups), self.softness)


def largest_gap_loss(disparity: Disparity, softness: float) -> Tensor:
    """L = T log 1/G Σ_g exp(−DPD_g / T): a smooth maximum of how far each group is behind the rest.

    Its gradient is Σ_g w_g ∇(−DPD_g) with w = softmax(−DPD / T): the groups furthest behind are raised against the
    rest, the others are left alone. It is 0 where no group is behind, and there its gradient is 0.

    >>> three = differentiable_disparity(torch.tensor([0.5, 0.5, 0.2]), torch.tensor([0, 1, 2]), 3)
    >>> largest_gap_loss(three, 0.001)
    tensor(0.2989)
    """
    dpd, is_defined = disparity
    n = is_defined.sum()
    behind = (-dpd / softness).masked_fill(~is_defined, -torch.inf)
    behind = torch.where(n > 0, behind, 0.0)  # log Σ of nothing has no gradient
    largest = softness * (behind.logsumexp(dim=0) - n.clamp(min=1).to(dpd.dtype).log())
    return torch.where(n > 0, largest, 0.0)


FAIRNESS_LOSSES: Registry[Callable[..., FairnessLoss]] = Registry("fairness loss")
"""Fairness losses by name: what makes them from keywords such as `weight` and `temperature`."""
for _kind in get_args(Kind):
    FAIRNESS_LOSSES.register(_kind, partial(DisparityLoss, kind=_kind))
FAIRNESS_LOSSES.register("largest", LargestGapLoss)
