"""The controller of the disparity: how much each group's events count, so that no gap is larger than accepted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from fairstream.strategies.strategy import Memory

N_POOLED: Final = 8
"""Periods that are pooled, the later ones counting more."""
DECAY: Final = 0.7
"""How much a period counts, compared with the one after it."""
MOST: Final = 16.0
"""The most times that an event counts."""
LAMBDA_PER_LOG_WEIGHT: Final = 2.0
"""λ for each unit of log weight, in models whose loss knows no weights of events."""
_LEAST_USERS: Final = 2
_NOTICEABLE: Final = 0.02
_CHANCE: Final = math.sqrt(2 / math.pi)
"""The mean size of a normal variable, in standard deviations."""


class Gap(NamedTuple):
    """How far a group is behind the rest: a difference of means and its variance."""

    value: float
    variance: float


class Measured(NamedTuple):
    """How the model in service did on a period before learning it."""

    quality: float
    """The mean over everyone."""
    variance: float
    """Of that mean."""
    gaps: Mapping[str, Gap]
    """By group; those with too few tested users are not there."""

    @classmethod
    def of(
        cls, values: np.ndarray[Any, Any], codes: np.ndarray[Any, Any], names: tuple[str, ...], least: int
    ) -> Measured:
        """From the users' values and the codes of their groups; a group needs at least so many users.

        >>> Measured.of(np.array([1.0, 0.8, 0.2, 0.4]), np.array([0, 0, 1, 1]), ("M", "F"), 2).gaps["F"].value
        0.6
        """
        sizes = np.bincount(codes[codes >= 0], minlength=len(names))
        compared = np.flatnonzero(sizes >= max(least, _LEAST_USERS))
        gaps = {}
        for code in compared if len(compared) > 1 else ():
            own, rest = values[codes == code], values[np.isin(codes, compared) & (codes != code)]
            variance = own.var(ddof=1) / len(own) + rest.var(ddof=1) / len(rest)
            gaps[names[code]] = Gap(float(rest.mean() - own.mean()), float(variance))
        n = len(values)
        return cls(float(values.mean()) if n else math.nan, float(values.var(ddof=1) / n) if n > 1 else math.inf, gaps)


class Control(NamedTuple):
    """What a controller decided."""

    weights: Mapping[str, float]
    """How many times the events of each group count; once where a group is not named."""
    memory: Memory
    """What the next decision needs."""
    reasons: tuple[str, ...]
    """One sentence for each thing that it did, or could not do."""

    @property
    def fairness_weight(self) -> float:
        """λ, where the loss knows no weights of events."""
        return LAMBDA_PER_LOG_WEIGHT * math.log(max(self.weights.values(), default=1.0))


@dataclass(frozen=True)
class DisparityController:
    """Holds "no group is more than ε behind the rest" by letting the events of groups that are behind count more.

    For each group g the constraint is (mean of the rest) − (mean of g) ≤ ε, in the metric itself. Its
    multiplier is θ_g ≥ 0, and the events of g count e^θ_g times. Where a model maximises a weighted
    likelihood, that is the Lagrangian of the problem with the gap in mean log-likelihood as a proxy
    for the gap in the metric: proxy and metric never need to agree, because θ follows the
    metric alone. It is updated once a period, by a proportional-integral rule with a filtered error
    (νPI):

        ξ_t = ν ξ_{t−1} + (1 − ν) e_t,    θ_t = max(0, θ_{t−1} + K_I e_t + K_P (ξ_t − ξ_{t−1}))

    e_t is how far the gap is beyond ε, as a share of the quality. It is judged with the uncertainty of
    the periods pooled: 0 unless the whole interval (gap ± z SE) lies on one side of ε, then the distance of its
    nearer end. So noise moves nothing, a gap that is too large raises θ, and slack lowers it again.

    Nothing but the period just ended and those before it is looked at, and nothing needs a
    user's group when items are recommended.
    """

    max_disparity: float
    """ε"""
    min_quality: float | None = None
    """The least quality that is accepted: below it the weights give way."""
    integral: float = 8.0
    """K_I"""
    proportional: float = 4.0
    """K_P"""
    momentum: float = 0.5
    """ν"""
    z: float = 1.5
    """Standard errors that the gap must be away from ε before anything is done."""

    def unchanged(self, memory: Memory) -> Control:
        """As it was decided before."""
        return Control(_weights(memory.get("log_weights", {})), memory, ())

    def step(self, memory: Memory, measured: Measured) -> Control:
        """Decide after a period has ended."""
        periods = [*memory.get("periods", ()), _stored(measured)][-N_POOLED:]
        quality = _pooled([Gap(*period["quality"]) for period in periods])
        thetas, errors = dict(memory.get("log_weights", {})), dict(memory.get("smoothed_errors", {}))
        stuck, reasons = dict(memory.get("n_stuck", {})), []
        gives_way = self.min_quality is not None and quality.value + self.z * _se(quality) < self.min_quality
        for name in sorted({name for period in periods for name in period["gaps"]}):
            gap = _pooled([Gap(*period["gaps"][name]) for period in periods if name in period["gaps"]])
            error = self._beyond(gap) / max(quality.value, 1e-9)
            before, smoothed = thetas.get(name, 0.0), errors.get(name, 0.0)
            if name not in measured.gaps:  # nothing new is known of it
                continue
            theta, errors[name] = self.follow(before, smoothed, error)
            if error <= 0:  # the proportional part alone would raise it when slack shrinks
                theta = min(theta, before)
            if gives_way:
                theta = min(theta, before / 2)
            thetas[name] = min(theta, math.log(MOST))
            is_at_limit = thetas[name] >= math.log(MOST) or (gives_way and error > 0)
            stuck[name] = stuck.get(name, 0) + 1 if is_at_limit and error > 0 else 0
            if gap.value > 0 or before > 0:
                reasons.append(self._reason(name, gap, before, thetas[name], is_stuck=stuck[name] > 0))
        if gives_way:
            assert self.min_quality is not None
            reasons.append(
                f"the quality is {quality.value:.4f} ± {_se(quality):.4f}, below the {self.min_quality:g} that is "
                f"accepted: the weights give way"
            )
        following = {"periods": periods, "log_weights": thetas, "smoothed_errors": errors, "n_stuck": stuck}
        return Control(_weights(thetas), following, tuple(reasons))

    def follow(self, theta: float, smoothed: float, error: float) -> tuple[float, float]:
        """θ_t and ξ_t from θ_{t−1}, ξ_{t−1} and e_t."""
        following = self.momentum * smoothed + (1 - self.momentum) * error
        return max(0.0, theta + self.integral * error + self.proportional * (following - smoothed)), following

    def _beyond(self, gap: Gap) -> float:
        """How far the gap is surely beyond ε (below it: negative); 0 where that cannot be told."""
        low, high = (gap.value + sign * self.z * _se(gap) - self.max_disparity for sign in (-1, 1))
        return low if low > 0 else high if high < 0 else 0.0

    def _reason(self, name: str, gap: Gap, before: float, after: float, *, is_stuck: bool) -> str:
        """What was decided about a group, in one sentence."""
        where = f"{name} is {gap.value:.4f} ± {_se(gap):.4f} behind the rest and may be {self.max_disparity:g}"
        now, then = (f"{math.exp(theta):.2f} times" for theta in (after, before))
        if is_stuck:
            return f"{where}: that cannot be met; its events count {now} and would have to count more"
        if abs(after - before) > _NOTICEABLE:
            return f"{where}: its events count {now} from now on, {then} before"
        if self.max_disparity < _CHANCE * _se(gap):
            return f"{where}, which is less than chance alone gives: its events count {now} as before"
        return f"{where}: its events count {now} as before"


def _weights(thetas: Mapping[str, float]) -> dict[str, float]:
    return {name: math.exp(theta) for name, theta in thetas.items() if theta > 0}


def _stored(measured: Measured) -> dict[str, Any]:
    gaps = {name: list(gap) for name, gap in measured.gaps.items()}
    return {"quality": [measured.quality, measured.variance], "gaps": gaps}


def _pooled(periods: list[Gap]) -> Gap:
    """The mean over periods, each counting by its precision and less the older it is, and its variance."""
    weights = np.array([DECAY ** (len(periods) - 1 - at) / max(gap.variance, 1e-12) for at, gap in enumerate(periods)])
    weights /= weights.sum()
    values, variances = np.array(periods).T
    return Gap(float(weights @ values), float(weights**2 @ variances))


def _se(gap: Gap) -> float:
    return math.sqrt(gap.variance)
