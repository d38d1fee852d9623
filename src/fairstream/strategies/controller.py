"""The controller of the disparity: how much each group's events count, so that no gap is larger than accepted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.data.history import Floats
from fairstream.strategies.strategy import Memory

Side = Literal["behind", "both"]
N_POOLED: Final = 8
"""Periods that are pooled, the later ones counting more."""
DECAY: Final = 0.7
"""How much a period counts, compared with the one after it."""
MOST: Final = 64.0
"""The most times that an event counts."""
_RESPONSE: Final = 0.3
"""The share of a gap that one unit of log weight is taken to close: measurements under other weights count less."""
_LEAST_USERS: Final = 2
_NOTICEABLE: Final = 0.02
_CHANCE: Final = math.sqrt(2 / math.pi)
"""The mean size of a normal variable, in standard deviations."""


class Estimate(NamedTuple):
    """A mean, or a difference of means, and its variance."""

    value: float
    variance: float

    @property
    def se(self) -> float:
        """The standard error."""
        return math.sqrt(self.variance)


class Measured(NamedTuple):
    """How the model in service did on a period before learning it."""

    quality: Estimate
    """The mean over everyone."""
    gaps: Mapping[str, Estimate]
    """How far each group is behind the rest; groups with too few tested users are not there."""
    standings: Mapping[str, Estimate] = {}
    """The log of each group's quality over what recent popularity, which no weights reach, is worth to it."""

    @classmethod
    def of(
        cls,
        values: np.ndarray[Any, Any],
        codes: np.ndarray[Any, Any],
        names: tuple[str, ...],
        least: int,
        yardstick: np.ndarray[Any, Any] | None = None,
    ) -> Measured:
        """From the users' values and the codes of their groups; a group needs at least so many users.

        `yardstick` holds the values of the same users under recent popularity, where standings are wanted.

        >>> Measured.of(np.array([1.0, 0.8, 0.2, 0.4]), np.array([0, 0, 1, 1]), ("M", "F"), 2).gaps["F"].value
        0.6
        """
        sizes = np.bincount(codes[codes >= 0], minlength=len(names))
        compared = np.flatnonzero(sizes >= max(least, _LEAST_USERS))
        gaps, standings = {}, {}
        for code in compared if len(compared) > 1 else ():
            own, rest = codes == code, np.isin(codes, compared) & (codes != code)
            (mean, variance), (other, its_variance) = _mean(values[own]), _mean(values[rest])
            gaps[names[code]] = Estimate(other - mean, variance + its_variance)
            if yardstick is not None and mean > 0 and yardstick[own].mean() > 0:
                standings[names[code]] = _log_ratio(values[own], yardstick[own])
        return cls(_mean(values), gaps, standings)


MeasureGroups = Callable[[Rows, Floats, Codes, tuple[str, ...], Floats | None], Measured]
"""From the users' rows, their values, the codes and names of their groups, and their values under recent popularity."""


class Control(NamedTuple):
    """What a controller decided."""

    weights: Mapping[str, float]
    """How many times the events of each group count; once where a group is not named."""
    memory: Memory
    """What the next decision needs: JSON values."""
    reasons: tuple[str, ...]
    """One sentence for each thing that it did, or could not do."""
    gaps: Mapping[str, Estimate] = {}
    """How far each group that could be measured is behind the rest, over the periods pooled."""

    @property
    def log_weight(self) -> float:
        """The largest log weight: how much is done at all."""
        return max(0.0, math.log(max(self.weights.values(), default=1.0)))

    def ahead(self, names: Iterable[str]) -> list[str]:
        """Those of some groups whose events do not count more."""
        return [name for name in names if self.weights.get(name, 1.0) <= 1]


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

    e_t is how far the gap is beyond ε, as a share of the gap (where it is below: of ε). It is judged with the
    uncertainty of the periods pooled: 0 unless the whole interval (gap ± z SE) lies on one side of ε, then the
    distance of its nearer end. So noise moves nothing, a gap that is too large raises θ, and slack lowers it again,
    at half the speed.
    What was measured under other weights counts less.

    Nothing but the period just ended and those before it is looked at, and nothing needs a
    user's group when items are recommended.
    """

    max_disparity: float
    """ε"""
    min_quality: float | None = None
    """The least quality of everyone that is accepted: below it the weights give way."""
    max_group_loss: float | None = None
    """The largest share of its quality that a group may lose to the weights: beyond it they give way."""
    side: Side = "behind"
    """both: no group may be more than ε ahead of the rest either; its events count less. Of two groups one is
    as far behind as the other is ahead, so that nothing changes."""
    integral: float = 2.0
    """K_I"""
    proportional: float = 1.0
    """K_P"""
    momentum: float = 0.5
    """ν"""
    z: float = 1.0
    """Standard errors that the gap must be away from ε before anything is done."""

    def unchanged(self, memory: Memory) -> Control:
        """As it was decided before."""
        return Control(_weights(memory), memory, ())

    @staticmethod
    def start(weights: Mapping[str, float]) -> Memory:
        """What to remember where groups have weights before the first decision."""
        return {"behind": {name: math.log(weight) for name, weight in weights.items()}}

    def step(self, memory: Memory, measured: Measured, share: float = 1.0) -> Control:
        """Decide after a period has ended; `share` is how much of the step in θ is taken."""
        log_weights = {name: math.log(weight) for name, weight in _weights(memory).items()}
        periods = [*memory.get("periods", ()), _stored(measured, log_weights)][-N_POOLED:]
        following: dict[str, Any] = {**memory, "periods": periods}
        loss = self._loss(following, measured, log_weights)
        gives_way, reasons = self._gives_way(periods, loss)
        sides = ("behind", "ahead") if self.side == "both" and len(measured.gaps) > 2 else ("behind",)
        for side in sides:
            thetas, errors = dict(memory.get(side, {})), dict(memory.get(f"{side}_errors", {}))
            raised = {name for name in measured.gaps if thetas.get(name, 0.0) > 0}
            for name in measured.gaps:
                error, before = self._violation(_pooled_gap(periods, name, side)), thetas.get(name, 0.0)
                theta, errors[name] = self.follow(before, errors.get(name, 0.0), error)
                if error <= 0:  # the proportional part alone would raise it when slack shrinks
                    theta = min(theta, before)
                if len(measured.gaps) == 2 and raised - {name}:  # the other of two groups gives back what it has first
                    theta = min(theta, before)
                if gives_way:
                    theta = min(theta, before / 2)
                thetas[name] = min((1 - share) * before + share * theta, math.log(MOST))
            least = min((thetas[name] for name in measured.gaps), default=0.0)
            thetas |= {name: thetas[name] - least for name in measured.gaps}  # only the ratios of weights matter
            following |= {side: thetas, f"{side}_errors": errors}
        weights = _weights(following)
        for side in sides:
            for name in sorted(measured.gaps):
                gap, after = _pooled_gap(periods, name, side), math.log(weights.get(name, 1.0))
                if gap.value > 0 or memory.get(side, {}).get(name, 0.0) > 0:
                    is_stuck = self._violation(gap) > 0 and (gives_way or following[side][name] >= math.log(MOST))
                    reasons.append(
                        self._reason(name, side, gap, log_weights.get(name, 0.0), after, is_at_limit=is_stuck)
                    )
        gaps = {name: _pooled_gap(periods, name, "behind") for name in measured.gaps}
        return Control(weights, following, tuple(reasons), gaps)

    def follow(self, theta: float, smoothed: float, error: float) -> tuple[float, float]:
        """θ_t and ξ_t from θ_{t−1}, ξ_{t−1} and e_t."""
        following = self.momentum * smoothed + (1 - self.momentum) * error
        return max(0.0, theta + self.integral * error + self.proportional * (following - smoothed)), following

    def _violation(self, gap: Estimate) -> float:
        """How far the gap is surely beyond ε, as a share of it; below: of ε, and negative; 0: cannot be told."""
        low, high = (gap.value + sign * self.z * gap.se for sign in (-1, 1))
        if low > self.max_disparity:
            return (low - self.max_disparity) / gap.value
        return max(-1.0, high / self.max_disparity - 1) / 2 if high < self.max_disparity else 0.0

    def _loss(
        self, memory: dict[str, Any], measured: Measured, log_weights: Mapping[str, float]
    ) -> tuple[str, float] | None:
        """A group that has surely lost more than is accepted, and its loss; remembers the standings for that."""
        if self.max_group_loss is None:
            return None
        key = "with_weights" if log_weights else "without_weights"
        standings = {name: list(estimate) for name, estimate in measured.standings.items()}
        memory[key] = [*memory.get(key, ()), standings][-N_POOLED:]
        for name in sorted(standings) if log_weights else ():
            then, now = (
                [Estimate(*period[name]) for period in memory.get(when, ()) if name in period]
                for when in ("without_weights", "with_weights")
            )
            if then:
                reference, current = _pooled(then), _pooled(now)
                change, se = current.value - reference.value, math.hypot(current.se, reference.se)
                if change + self.z * se < math.log(1 - self.max_group_loss):
                    return name, 1 - math.exp(change)
        return None

    def _gives_way(self, periods: list[dict[str, Any]], loss: tuple[str, float] | None) -> tuple[bool, list[str]]:
        """Whether the weights cost more than is accepted, and a sentence for each reason."""
        quality, reasons = _pooled([Estimate(*period["quality"]) for period in periods]), []
        if self.min_quality is not None and quality.value + self.z * quality.se < self.min_quality:
            reasons.append(
                f"the quality is {quality.value:.4f} ± {quality.se:.4f}, below the {self.min_quality:g} that is "
                f"accepted: the weights give way"
            )
        if loss is not None:
            reasons.append(
                f"{loss[0]} has lost {loss[1]:.0%} of its quality, beside recent popularity, since groups have "
                f"weights, and may lose {self.max_group_loss:.0%}: the weights give way"
            )
        return bool(reasons), reasons

    def _reason(self, name: str, side: str, gap: Estimate, before: float, after: float, *, is_at_limit: bool) -> str:
        """What was decided about a group, in one sentence."""
        sides = ("behind", "ahead of") if side == "behind" else ("ahead of", "behind")
        where = f"{name} is {abs(gap.value):.4f} ± {gap.se:.4f} {sides[gap.value < 0]} the rest and may be "
        where += f"{self.max_disparity:g}" + (f" {side}" if gap.value < 0 else "")
        now, then = (f"{math.exp(theta):.2f} times" for theta in (after, before))
        if is_at_limit:
            return f"{where}: that cannot be met; its events count {now}, and more is not accepted"
        if abs(after - before) > _NOTICEABLE:
            return f"{where}: its events count {now} from now on, {then} before"
        if self.max_disparity < _CHANCE * gap.se:
            return f"{where}, which is less than chance alone gives: its events count {now} as before"
        return f"{where}: its events count {now} as before"


def _weights(memory: Memory) -> dict[str, float]:
    """How many times the events of each group count; groups that count once are left out."""
    behind, ahead = memory.get("behind", {}), memory.get("ahead", {})
    thetas = {name: behind.get(name, 0.0) - ahead.get(name, 0.0) for name in {**behind, **ahead}}
    return {name: math.exp(theta) for name, theta in thetas.items() if theta}


def _stored(measured: Measured, log_weights: Mapping[str, float]) -> dict[str, Any]:
    gaps = {name: list(gap) for name, gap in measured.gaps.items()}
    return {"quality": list(measured.quality), "gaps": gaps, "log_weights": dict(log_weights)}


def _pooled_gap(periods: list[dict[str, Any]], name: str, side: str) -> Estimate:
    """A group's gap over the periods; one that was measured under other weights is less certain to hold now."""
    sign, now, estimates = 1 if side == "behind" else -1, periods[-1]["log_weights"], []
    for period in periods:
        if name in period["gaps"]:
            (value, variance), then = period["gaps"][name], period["log_weights"]
            change = max((abs(now.get(one, 0.0) - then.get(one, 0.0)) for one in {**now, **then}), default=0.0)
            estimates.append(Estimate(sign * value, variance + (_RESPONSE * value * change) ** 2))
    return _pooled(estimates)


def _pooled(periods: list[Estimate]) -> Estimate:
    """The mean over periods, each counting by its precision and less the older it is, and its variance."""
    weights = np.array([DECAY ** (len(periods) - 1 - at) / max(one.variance, 1e-12) for at, one in enumerate(periods)])
    weights /= weights.sum()
    values, variances = np.array(periods).T
    return Estimate(float(weights @ values), float(weights**2 @ variances))


def _mean(values: np.ndarray[Any, Any]) -> Estimate:
    n = len(values)
    return Estimate(float(values.mean()) if n else math.nan, float(values.var(ddof=1) / n) if n > 1 else math.inf)


def _log_ratio(values: np.ndarray[Any, Any], yardstick: np.ndarray[Any, Any]) -> Estimate:
    """The log of the ratio of two means over the same users, by the delta method."""
    residual = values / values.mean() - yardstick / yardstick.mean()
    return Estimate(math.log(values.mean() / yardstick.mean()), float(residual.var(ddof=1) / len(values)))
