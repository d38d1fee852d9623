"""Tests of two arms that stay valid however often one looks.

A test of a fixed sample is wrong when somebody looks each day and stops at the first significant difference. The
intervals here hold at all looks together: with probability 1 − α the true difference lies within every one of them.

**Two arms.** User u was exposed x_u times with the outcome y_u (say, items shown and clicked); an arm's rate is
r = Σ y / Σ x. With z_u = y_u − r x_u of its arm, D = X_A X_B / (X_A + X_B), where X is an arm's Σ x, and

    Δ = r_B − r_A,    V = D² (v_A + v_B),    v = n / (n − 1) · Σ z² / X²,

D·Δ is a sum over users whose variance is V, whatever the correlation within a user. The interval is

    Δ ± √((V + ρ) ln((V + ρ) / (ρ α²))) / D,

the boundary of Robbins' normal mixture with the variance as its clock. A user who returns adds to a term of the sum
instead of a new one. As long as a user's events are not negatively correlated, looks are then correlated more than
those at a Brownian motion, and by Slepian's inequality the boundary is crossed less often. ρ says where the interval
is tightest; it is fixed at the first look after the minimum sample, which the normal approximation needs.

**A win rate.** W wins and L losses of independent trials are tested against 1/2 by the e-process of a Beta(a, a)
mixture, B(W + a, L + a) / (B(a, a) p^W (1 − p)^L) at p = 1/2, which is exact for every number of trials.

References: Robbins, "Statistical methods related to the law of the iterated logarithm", 1970; Howard, Ramdas, McAuliffe
and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021; Waudby-Smith, Arbour, Sinha,
Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln

from fairstream.errors import ConfigurationError

MIN_USERS = 100  # of each arm: the normal approximation needs them
MIN_OUTCOMES = 20  # expected of each arm if both are equal; (Σy)² / Σy² counts them: users, where each has one
_TIGHTEST = 30.0  # the interval is tightest where the variance is this many times that at the minimum sample
_PRIOR = 10.0  # a of the mixture of win rates: of most weight for rates from 0.35 to 0.65


@dataclass(frozen=True)
class ArmTotals:
    """Sums over the users of an arm.

    >>> totals = ArmTotals.of([1, 0, 2], [10, 5, 5])
    >>> totals.y / totals.x
    0.15
    """

    n: float = 0
    """Number of users."""
    x: float = 0
    """Sum of exposures."""
    y: float = 0
    """Sum of outcomes."""
    xx: float = 0
    xy: float = 0
    yy: float = 0

    @classmethod
    def of(cls, outcomes: Any, exposures: Any = None) -> Self:
        """Return the sums over users; each counts as exposed once unless `exposures` says otherwise."""
        y = np.asarray(outcomes, np.float64)
        x = np.ones_like(y) if exposures is None else np.asarray(exposures, np.float64)
        return cls(len(y), *(float(part.sum()) for part in (x, y, x * x, x * y, y * y)))


@dataclass(frozen=True)
class SequentialResult:
    """The difference of two arms at one look."""

    difference: float
    """B's rate minus `ratio` times A's."""
    interval: tuple[float, float]
    """It holds at all looks together."""
    e_value: float
    """Evidence against no difference: at least 1/α exactly where the interval excludes 0."""
    scale: float
    """ρ; pass it at the next look."""

    @property
    def is_better(self) -> bool:
        return self.interval[0] > 0

    @property
    def is_worse(self) -> bool:
        return self.interval[1] < 0


def sequential_test(
    a: ArmTotals,
    b: ArmTotals,
    *,
    alpha: float = 0.05,
    n_tests: int = 1,
    ratio: float = 1.0,
    scale: float | None = None,
) -> SequentialResult | None:
    """Compare the rates of two arms, validly at any number of looks.

    Parameters
    ----------
    a, b
        The sums over each arm's users up to now.
    alpha
        The probability that any look at any of the tests shows a difference where there is none.
    n_tests
        The number of tests that share `alpha`, such as one for each group.
    ratio
        B is compared with this share of A's rate: with 0.95, B is worse if it loses more than 5 % of A's rate.
    scale
        `scale` of an earlier look's result.

    Returns
    -------
    SequentialResult
        None before both arms have the minimum sample: `MIN_USERS` users and `MIN_OUTCOMES` expected outcomes.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a, b = (ArmTotals.of(rng.binomial(10, rate, 3000), np.full(3000, 10)) for rate in (0.10, 0.13))
    >>> result = sequential_test(a, b)
    >>> [round(end, 3) for end in result.interval], result.is_better
    ([0.016, 0.044], True)
    """
    if not 0 < alpha < 1 or n_tests < 1 or ratio <= 0:
        raise ConfigurationError(
            f"alpha must be between 0 and 1, n_tests at least 1 and ratio > 0, got {alpha}, {n_tests} and {ratio}"
        )
    if not is_large(a, b):
        return None
    difference, weight, variance = evidence(a, b, ratio)
    scale = scale or first_scale(variance)
    if not scale > 0:  # every user has the same rate
        return None
    radius = float(radius_of(variance, scale, alpha / n_tests) / weight)
    exponent = (weight * difference) ** 2 / (2 * (variance + scale))
    e_value = math.sqrt(scale / (variance + scale)) * math.exp(min(float(exponent), 700.0))
    return SequentialResult(float(difference), (float(difference) - radius, float(difference) + radius), e_value, scale)


def win_rate_test(wins: int, losses: int, *, alpha: float = 0.05) -> SequentialResult:
    """Compare a win rate with 1/2, validly after every trial; the difference is wins − losses as a share of trials.

    >>> result = win_rate_test(620, 480)
    >>> round(result.difference, 3), result.is_better, round(result.e_value)
    (0.127, True, 859)
    """
    n = wins + losses
    marginal = betaln(wins + _PRIOR, losses + _PRIOR) - betaln(_PRIOR, _PRIOR)

    def excess(p: float) -> float:
        """Log of the e-value against the win rate p, minus that at which p leaves the interval."""
        return float(marginal - wins * math.log(p) - losses * math.log1p(-p) + math.log(alpha))

    best, tiny = min(max(wins / n, 1e-9), 1 - 1e-9) if n else 0.5, 1e-12
    low = brentq(excess, tiny, best) if excess(tiny) > 0 else 0.0
    high = brentq(excess, best, 1 - tiny) if excess(1 - tiny) > 0 else 1.0
    e_value = math.exp(min(float(marginal) + n * math.log(2), 700.0))
    return SequentialResult((wins - losses) / n if n else 0.0, (2 * low - 1, 2 * high - 1), e_value, _PRIOR)


def is_large(a: Any, b: Any) -> Any:
    """Whether both arms have the minimum sample; an arm without outcomes has it where the other one has enough."""
    with np.errstate(divide="ignore", invalid="ignore"):  # before the first outcome
        smaller = np.minimum(a.x, b.x) / (a.x + b.x)
        n_outcomes = np.nan_to_num(np.divide((a.y + b.y) ** 2, a.yy + b.yy) * smaller)
    return (np.minimum(a.n, b.n) >= MIN_USERS) & (n_outcomes >= MIN_OUTCOMES)


def evidence(a: Any, b: Any, ratio: float) -> Any:
    """Δ, D and V of the equations above, for numbers and for arrays."""
    rates, variances = [], []
    for arm in (a, b):
        rate = arm.y / arm.x
        squares = arm.yy - 2 * rate * arm.xy + rate * rate * arm.xx
        rates.append(rate)
        variances.append(arm.n / (arm.n - 1) * squares / (arm.x * arm.x))
    weight = a.x * b.x / (a.x + b.x)
    return rates[1] - ratio * rates[0], weight, weight**2 * (ratio**2 * variances[0] + variances[1])


def first_scale(variance: float) -> float:
    """ρ, from V at the first look after the minimum sample."""
    return float(_TIGHTEST * variance / 8.4)  # 8.4 = −W₋₁(−α² / e) − 1 at α = 0.05


def radius_of(variance: Any, scale: float, alpha: float) -> Any:
    """The boundary of D·Δ at one look."""
    return np.sqrt((variance + scale) * np.log((variance + scale) / (scale * alpha**2)))
