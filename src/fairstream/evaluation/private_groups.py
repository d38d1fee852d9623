"""Means of groups that carry noise for privacy, with their errors, and what such noise guarantees.

Gaussian noise of the standard deviation Δ / μ on numbers that one person moves by Δ is μ-private (Dong, Roth and Su,
"Gaussian differential privacy", 2022): an attacker who knows everything else guesses right between two values of this
person with probability Φ(μ / 2) at most. Squared, the μ of all published numbers add up.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

from fairstream.data.groups import Codes
from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.evaluation.resampling import Array

MAX_NOISE: Final = 0.5
"""The largest standard error of a published number's noise, as a share of its sampling error."""
_CONFIDENCE = 0.95
_DIGITS = 3
_NORMAL = NormalDist()


def noise_margin(noise: float, chance: float = 0.001) -> float:
    """The largest error to one side due to noise of this standard error, except with probability `chance`."""
    return noise * _NORMAL.inv_cdf(1 - chance)


class Normal(NamedTuple):
    """A number and its standard error, which includes that of the noise."""

    value: float
    se: float
    noise: float = 0.0  # the standard error of the noise alone

    @property
    def sampling(self) -> float:
        """The standard error without the noise."""
        return math.sqrt(max(0.0, self.se**2 - self.noise**2))

    def margin(self, n_tests: int = 1) -> float:
        """Half of the 95 % interval; of several numbers all intervals hold together (Šidák's correction)."""
        return self.se * _NORMAL.inv_cdf(0.5 + _CONFIDENCE ** (1 / n_tests) / 2)

    @property
    def interval(self) -> tuple[float, float]:
        return self.value - self.margin(), self.value + self.margin()

    def p_value(self, n_tests: int = 1) -> float:
        """The p-value of the null hypothesis 0, for the number furthest from 0 of `n_tests`."""
        z = abs(self.value) / self.se if self.se > 0 else math.inf
        return 1 - (1 - 2 * _NORMAL.cdf(-z)) ** n_tests

    @property
    def is_readable(self) -> bool:
        return self.noise <= MAX_NOISE * self.sampling

    def can_test(self, limit: float) -> bool:
        return self.noise <= limit

    def published(self, n_tests: int = 1) -> list[Any]:
        """[value, [low, high]], rounded."""
        ends = (self.value + sign * self.margin(n_tests) for sign in (-1, 1))
        return [round(self.value, _DIGITS), [round(end, _DIGITS) for end in ends]]

    @classmethod
    def mean(cls, values: Array) -> Normal:
        """Of users' values, as a sample of a large population."""
        n = len(values)
        return cls(float(values.mean()), math.sqrt(float(values.var(ddof=1)) / n) if n > 1 else math.inf)


@dataclass(frozen=True)
class GroupMeans:
    """The groups that are large enough to report: their sizes, and the means that are known."""

    sizes: Mapping[str, float]
    means: Mapping[str, Normal]
    scale: float = 0.0  # the standard deviation of the noise of a sum, before all noises are made to add up to 0
    n_groups: int = 1
    why: str = ""  # why groups have no mean

    def gaps(self) -> dict[str, Normal]:
        """Each group's mean minus that of the users of all other groups with a mean."""
        gaps, share = {}, 1 / self.n_groups
        for name, own in self.means.items() if len(self.means) > 1 else ():
            others = [other for other in self.means if other != name]
            weights = np.array([self.sizes[other] for other in others])
            n, rest, m = self.sizes[name], float(weights.sum()), len(others)
            values = np.array([self.means[other].value for other in others])
            errors = np.array([self.means[other].sampling for other in others]) * weights / rest
            # Noises that add up to 0: the variance of one, of the sum of the others, and their covariance.
            variance = (1 - share) / n**2 + (m - m**2 * share) / rest**2 + 2 * m * share / (n * rest)
            noise = self.scale * math.sqrt(variance)
            se = math.hypot(own.sampling, float(np.hypot.reduce(errors)), noise)
            gaps[name] = Normal(own.value - float(values @ weights) / rest, se, noise)
        return gaps

    def plus(self, change: GroupMeans) -> GroupMeans:
        """The means, of values between 0 and 1, after a change."""
        means = {}
        for name, mean in self.means.items():
            other = change.means[name]
            value = min(max(mean.value + other.value, 0.0), 1.0)
            means[name] = Normal(value, math.hypot(mean.se, other.se), math.hypot(mean.noise, other.noise))
        return replace(self, means=means, scale=math.hypot(self.scale, change.scale))

    def readable(self) -> GroupMeans:
        """Only the means whose noise is small compared with their sampling error."""
        return replace(self, means={name: mean for name, mean in self.means.items() if mean.is_readable})


class GroupNoise:
    """Sizes and means of groups, which reveal nobody's group; a secret and a label determine the noise.

    A person in another group leaves the sum of one group and joins that of another: where one user adds at most b, the
    sums move by √2 b. The sum over all groups is known without anybody's group, so the noises add up to 0.
    """

    def __init__(self, secret: bytes, label: str) -> None:
        self._secret, self._label = secret, label

    def sizes(self, what: str, codes: Codes, names: Sequence[str], cost: float) -> dict[str, float]:
        """The size of each group."""
        counts = np.bincount(codes[codes >= 0], minlength=len(names))
        noise = self._noise(f"sizes {what}", names, noise_scale(1.0, cost))
        return {name: float(counts[code]) + noise[code] for code, name in enumerate(names)}

    def means(
        self,
        what: str,
        values: Array,
        codes: Codes,
        names: Sequence[str],
        sizes: Mapping[str, float],
        cost: float,
        least: float = 0.0,
        most: float = 1.0,
    ) -> GroupMeans:
        """The mean of each group, of values between `least` and `most`.

        It sums deviations from everyone's mean, so that an error in a group's size hardly matters, and takes the
        variance from everyone. Both are known without anybody's group.
        """
        values = np.clip(values, least, most)
        b, variance = value_range(values, codes, least, most)
        everyone = float(values[codes >= 0].mean()) if (codes >= 0).any() else 0.0
        scale, means = noise_scale(b, cost), {}
        draws, n_groups = self._noise(what, names, scale), len(names)
        for code, name in enumerate(names):
            if (size := sizes.get(name)) is not None:
                total = float((values[codes == code] - everyone).sum()) + draws[code]
                noise = scale * math.sqrt(1 - 1 / n_groups) / size
                mean = min(max(everyone + total / size, least), most)
                means[name] = Normal(mean, math.hypot(math.sqrt(variance / size), noise), noise)
        return GroupMeans(sizes, means, scale, n_groups)

    def _noise(self, what: str, names: Sequence[str], scale: float) -> Array:
        """Normal noise for each group; together 0, as the groups' sum is known."""
        draws = np.array([self._draw(what, name) for name in names]) * scale
        return draws - draws.mean()

    def _draw(self, *names: str) -> float:
        digest = hmac.digest(self._secret, "\x1f".join(("noise", self._label, *names)).encode(), "sha256")
        return _NORMAL.inv_cdf((int.from_bytes(digest[:6], "big") + 0.5) / 2**48)


def noise_scale(b: float, cost: float) -> float:
    """The standard deviation of the noise of sums where one user can add at most b."""
    return math.sqrt(2 / cost) * b


def value_range(values: Array, codes: Codes, least: float, most: float) -> tuple[float, float]:
    """How far a user's value can be from everyone's mean, and the variance of the values."""
    own = np.clip(values[codes >= 0], least, most)
    if not len(own):
        return most - least, 1e-9
    mean = float(own.mean())
    return max(most - mean, mean - least), max(float(own.var()), 1e-9)


def scores_by_group(
    score: GroupScores, groups: GroupMeans, names: Sequence[str], advantaged: str | None
) -> GroupScores:
    """Everyone's score with the readable means and gaps of groups."""
    means, gaps = {name: round(mean.value, _DIGITS) for name, mean in groups.means.items()}, groups.gaps()
    gaps = {name: gap for name, gap in gaps.items() if gap.is_readable}
    if not gaps:
        return GroupScores(score.mean, score.interval, {name: means.get(name) for name in sorted(names)})
    if advantaged not in gaps:  # with three groups or more it must be declared
        advantaged = max(gaps, key=lambda name: groups.sizes[name]) if len(names) == 2 else None
    order = sorted(names, key=lambda name: (name != advantaged, name))
    n_tests = len(gaps) if len(means) > 2 else 1  # two groups have one gap
    # A significant gap goes before one that is larger only because its group is small and its noise large.
    largest = max(gaps, key=lambda name: (abs(gaps[name].value) > gaps[name].margin(n_tests), abs(gaps[name].value)))
    last = min(gaps, key=lambda name: gaps[name].value)
    disparity = None if advantaged is None else _estimate(gaps[advantaged])
    return GroupScores(  # without `spread`: the distance between the extremes of noisy means is mostly noise
        mean=score.mean,
        interval=score.interval,
        by_group={name: means.get(name) for name in order},
        gaps={name: _estimate(gaps[name]) for name in order if name in gaps},
        largest_gap=_estimate(gaps[largest]._replace(value=abs(gaps[largest].value)), n_tests),
        largest_gap_group=largest,
        disparity=disparity,
        abs_performance_disparity=None if disparity is None else abs(disparity.value),
        advantaged=advantaged,
        furthest_behind=_estimate(gaps[last]._replace(value=-gaps[last].value), n_tests),
        furthest_behind_group=last,
    )


def _estimate(gap: Normal, n_tests: int = 1) -> Estimate:
    value, (low, high) = gap.published(n_tests)
    null_mean = round(gap.se * math.sqrt(2 / math.pi), _DIGITS)
    return Estimate(value, (low, high), round(gap.p_value(n_tests), _DIGITS), null_mean)
