"""Targets, and the controller that weighs each group's events to keep every gap below the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from fairstream.configuration import check_number
from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.data.history import Floats
from fairstream.errors import ConfigurationError
from fairstream.strategies.strategy import Memory

N_POOLED: Final = 8  # number of latest periods that are pooled; later ones count more
DECAY: Final = 0.7  # weight of a period relative to the next one
MAX_WEIGHT: Final = 64.0  # largest weight of an event
_MAX_LOG_WEIGHT: Final = math.log(MAX_WEIGHT)
_RESPONSE: Final = 0.3
"""Assumed share of a gap that one unit of log weight closes: gaps measured under other weights count less."""
_MIN_USERS: Final = 2
_NOTICEABLE: Final = 0.02
_CHANCE: Final = math.sqrt(2 / math.pi)  # mean size of a normal variable, in standard deviations
Lever = Literal["auto", "event-weights", "fairness-loss"]


class Estimate(NamedTuple):
    """A mean, or a difference of means, and its variance."""

    value: float
    variance: float

    @property
    def se(self) -> float:
        return math.sqrt(self.variance)


class Measured(NamedTuple):
    """Gaps of the serving model on a period that it has not learned yet."""

    gaps: Mapping[str, Estimate]  # how far each group is behind the rest; groups with too few tested users are missing
    log_lift_over_popularity: Mapping[str, Estimate] = {}
    """Log of each group's quality over its quality under recent popularity, which the weights do not affect."""

    @classmethod
    def of(
        cls,
        values: np.ndarray[Any, Any],
        codes: np.ndarray[Any, Any],
        names: tuple[str, ...],
        min_users: int,
        baseline: np.ndarray[Any, Any] | None = None,
    ) -> Measured:
        """Compute the gaps from the users' values, the codes of their groups, and their values under recent popularity.

        >>> Measured.of(np.array([1.0, 0.8, 0.2, 0.4]), np.array([0, 0, 1, 1]), ("M", "F"), 2).gaps["F"].value
        0.6
        """
        sizes = np.bincount(codes[codes >= 0], minlength=len(names))
        compared = np.flatnonzero(sizes >= max(min_users, _MIN_USERS))
        gaps, lifts = {}, {}
        for code in compared if len(compared) > 1 else ():
            own, rest = codes == code, np.isin(codes, compared) & (codes != code)
            (mean, variance), (rest_mean, rest_variance) = _mean(values[own]), _mean(values[rest])
            gaps[names[code]] = Estimate(rest_mean - mean, variance + rest_variance)
            if baseline is not None and mean > 0 and baseline[own].mean() > 0:
                lifts[names[code]] = _log_ratio(values[own], baseline[own])
        return cls(gaps, lifts)


MeasureGroups = Callable[[Rows, Floats, Codes, tuple[str, ...], Floats | None], Measured]
"""From the users' rows, their values, the codes and names of their groups, and their values under recent popularity."""


class Control(NamedTuple):
    """A decision of the controller."""

    weights: Mapping[str, float]  # how many times the events of each group count; once where a group is missing
    memory: Memory  # what the next decision needs: JSON values
    reasons: tuple[str, ...]  # one sentence for each thing that it did, or could not do
    gaps: Mapping[str, Estimate] = {}  # how far each measured group is behind the rest, over the pooled periods

    @property
    def log_weight(self) -> float:
        """The largest log weight: how much is done at all."""
        return max(0.0, math.log(max(self.weights.values(), default=1.0)))

    def sign(self, name: str) -> float:
        """−1 for a group whose events count more, which a fairness loss is to raise; +1 for the others."""
        return -1.0 if self.weights.get(name, 1.0) > 1 else 1.0


@dataclass(frozen=True)
class DisparityController:
    """Enforces "no group is more than ε behind the rest": events of groups that are behind count more.

    For each group g the constraint is (mean of the rest) − (mean of g) ≤ ε, in the metric itself. Its multiplier is
    θ_g ≥ 0, and the events of g count e^θ_g times. A proportional-integral rule with a filtered error (νPI) updates it
    once a period, from this period and those before it:

        ξ_t = ν ξ_{t−1} + (1 − ν) e_t,    θ_t = max(0, θ_{t−1} + K_I e_t + K_P (ξ_t − ξ_{t−1}))

    e_t is the distance of the gap from ε, as a share of the gap (below ε: of ε). It is 0 if the interval gap ± z SE
    over the pooled periods contains ε; otherwise it is the distance of the nearer end. So noise moves nothing, a gap
    that is too large raises θ, and slack lowers it again, at half the speed.
    """

    max_disparity: float  # ε
    max_group_loss: float | None = None  # the share of its quality that a group may lose before weights are halved
    integral: float = 2.0  # K_I
    proportional: float = 1.0  # K_P
    momentum: float = 0.5  # ν
    z: float = 1.0  # standard errors that the gap must be away from ε before anything is done

    def unchanged(self, memory: Memory) -> Control:
        return Control(_weights(memory.get("thetas", {})), memory, ())

    @staticmethod
    def start(weights: Mapping[str, float]) -> Memory:
        """Return the memory where groups have weights before the first decision."""
        return {"thetas": {name: math.log(weight) for name, weight in weights.items()}}

    def step(self, memory: Memory, measured: Measured, share: float = 1.0) -> Control:
        """Decide after a period has ended; `share` is the part of the step in θ that is taken."""
        before: Mapping[str, float] = memory.get("thetas", {})
        log_weights = {name: theta for name, theta in before.items() if theta}
        period = {"gaps": {name: list(gap) for name, gap in measured.gaps.items()}, "log_weights": log_weights}
        periods = [*memory.get("periods", ()), period][-N_POOLED:]
        lifts = self._lifts(memory, measured, "lifts" if log_weights else "lifts_before")
        gaps = {name: _pooled_gap(periods, name) for name in measured.gaps}
        loss = self._too_large_loss(lifts, measured) if log_weights else None
        raised = {name for name in gaps if before.get(name, 0.0) > 0}
        thetas, errors = dict(before), dict(memory.get("errors", {}))
        for name, gap in gaps.items():
            old, error = before.get(name, 0.0), self._violation(gap)
            theta, errors[name] = self.follow(old, errors.get(name, 0.0), error)
            is_capped = (
                error <= 0  # the proportional part alone would raise θ when slack shrinks
                or (len(gaps) == 2 and bool(raised - {name}))  # of two groups the other first gives back its weight
            )
            theta = min(theta, old) if is_capped else theta
            theta = theta if loss is None else min(theta, old / 2)
            thetas[name] = min((1 - share) * old + share * theta, _MAX_LOG_WEIGHT)
        lowest = min((thetas[name] for name in gaps), default=0.0)
        at_limit = {name for name in gaps if loss is not None or thetas[name] - lowest >= _MAX_LOG_WEIGHT}
        thetas |= {name: thetas[name] - lowest for name in gaps}  # only the ratios of weights matter
        reasons = []
        if loss is not None:
            reasons.append(
                f"{loss[0]} has lost {loss[1]:.0%} of its quality relative to recent popularity since groups have "
                f"weights, and may lose {self.max_group_loss:.0%}: the weights are halved"
            )
        for name in sorted(gaps):
            old = before.get(name, 0.0)
            if gaps[name].value > 0 or old > 0:
                is_unmet = name in at_limit and self._violation(gaps[name]) > 0
                reasons.append(self._reason(name, gaps[name], old, thetas[name], is_unmet=is_unmet))
        following = {"thetas": thetas, "errors": errors, "periods": periods, **lifts}
        return Control(_weights(thetas), following, tuple(reasons), gaps)

    def follow(self, theta: float, smoothed: float, error: float) -> tuple[float, float]:
        """Return θ_t and ξ_t from θ_{t−1}, ξ_{t−1} and e_t."""
        following = self.momentum * smoothed + (1 - self.momentum) * error
        return max(0.0, theta + self.integral * error + self.proportional * (following - smoothed)), following

    def _violation(self, gap: Estimate) -> float:
        """How far the gap is surely beyond ε, as a share of it; below: of ε, and negative; 0: uncertain."""
        low, high = (gap.value + sign * self.z * gap.se for sign in (-1, 1))
        if low > self.max_disparity:
            return (low - self.max_disparity) / gap.value
        return max(-1.0, high / self.max_disparity - 1) / 2 if high < self.max_disparity else 0.0

    def _lifts(self, memory: Memory, measured: Measured, key: str) -> dict[str, list[Mapping[str, Any]]]:
        """The lifts over popularity of the latest periods, with weights and without; the new one belongs to `key`."""
        lifts = {name: list(memory.get(name, ())) for name in ("lifts", "lifts_before")}
        if self.max_group_loss is not None:
            new = {name: list(lift) for name, lift in measured.log_lift_over_popularity.items()}
            lifts[key] = [*lifts[key], new][-N_POOLED:]
        return lifts

    def _too_large_loss(
        self, lifts: Mapping[str, list[Mapping[str, Any]]], measured: Measured
    ) -> tuple[str, float] | None:
        """Return a group that has surely lost more than is accepted since groups have weights, and its loss."""
        if self.max_group_loss is None:
            return None
        for name in sorted(measured.log_lift_over_popularity):
            then, now = (
                [Estimate(*period[name]) for period in lifts[key] if name in period]
                for key in ("lifts_before", "lifts")
            )
            if then and now:
                reference, current = _pooled(then), _pooled(now)
                change, se = current.value - reference.value, math.sqrt(current.variance + reference.variance)
                if change + self.z * se < math.log(1 - self.max_group_loss):
                    return name, 1 - math.exp(change)
        return None

    def _reason(self, name: str, gap: Estimate, before: float, after: float, *, is_unmet: bool) -> str:
        side, limit = ("ahead of", " behind") if gap.value < 0 else ("behind", "")
        where = (
            f"{name} is {abs(gap.value):.4f} ± {gap.se:.4f} {side} the rest and may be {self.max_disparity:g}{limit}"
        )
        now, then = (f"{math.exp(theta):.2f} times" for theta in (after, before))
        if is_unmet:
            return f"{where}: that cannot be met; its events count {now}, and more is not accepted"
        if abs(after - before) > _NOTICEABLE:
            return f"{where}: its events count {now} from now on, {then} before"
        if self.max_disparity < _CHANCE * gap.se:
            return f"{where}, which is less than chance alone gives: its events count {now} as before"
        return f"{where}: its events count {now} as before"


@dataclass(frozen=True)
class MaxGap:
    """Limit the gap between any group and the rest.

    Each update measures the gaps on the new period before learning it and sets how much each group's events count.
    `FairRecommender.notes` explains what it did.

    Parameters
    ----------
    gap
        The largest accepted gap between a group and the rest, in `metric`.
    max_group_loss
        The largest share of its quality that any group may lose, relative to recent popularity, so that a hard
        period does not count as a loss; None: no limit.
    lever
        What it sets in models trained by gradient descent: "event-weights", how much each group's events count in the
        softmax loss of a sequence model; "fairness-loss", λ; "auto", event weights if the model takes them. Closed
        forms only have event weights.
    task
        The lists to measure: "next", one for the period just ended; "event", one at each of its events.
    metric
        NAME@K.

    Examples
    --------
    >>> MaxGap(0.02, max_group_loss=0.05)
    MaxGap(gap=0.02, max_group_loss=0.05, lever='auto', task='next', metric='ndcg@20')

    """

    gap: float
    max_group_loss: float | None = None
    lever: Lever = "auto"
    task: Literal["event", "next"] = "next"
    metric: str = "ndcg@20"

    def __post_init__(self) -> None:
        check_number("gap", self.gap, above=0, below=1)
        if self.max_group_loss is not None:
            check_number("max_group_loss", self.max_group_loss, above=0, below=1)
        for name, known in (("lever", get_args(Lever)), ("task", ("event", "next"))):
            if getattr(self, name) not in known:
                raise ConfigurationError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")


def _weights(thetas: Mapping[str, float]) -> dict[str, float]:
    """How many times the events of each group count; groups that count once are left out."""
    return {name: math.exp(theta) for name, theta in thetas.items() if theta}


def _pooled_gap(periods: list[Mapping[str, Any]], name: str) -> Estimate:
    """A group's gap over the periods; one measured under other weights is less certain to hold now."""
    now, estimates = periods[-1]["log_weights"], []
    for period in periods:
        if name in period["gaps"]:
            (value, variance), then = period["gaps"][name], period["log_weights"]
            change = max((abs(now.get(one, 0.0) - then.get(one, 0.0)) for one in {**now, **then}), default=0.0)
            estimates.append(Estimate(value, variance + (_RESPONSE * value * change) ** 2))
    return _pooled(estimates)


def _pooled(periods: list[Estimate]) -> Estimate:
    """The mean over periods, weighted by precision and recency, and its variance."""
    values, variances = np.array(periods).T
    ages = np.arange(len(periods))[::-1]
    weights = DECAY**ages / np.maximum(variances, 1e-12)
    weights /= weights.sum()
    return Estimate(float(weights @ values), float(weights**2 @ variances))


def _mean(values: np.ndarray[Any, Any]) -> Estimate:
    return Estimate(float(values.mean()), float(values.var(ddof=1) / len(values)))


def _log_ratio(values: np.ndarray[Any, Any], baseline: np.ndarray[Any, Any]) -> Estimate:
    """The log of the ratio of two means over the same users, by the delta method."""
    residual = values / values.mean() - baseline / baseline.mean()
    return Estimate(math.log(values.mean() / baseline.mean()), float(residual.var(ddof=1) / len(values)))
