"""What may be said of groups: sizes and means with noise, so that nobody's group follows from any of it.

All that an update stores or prints about groups comes from here, and is made before it is stored, so no reader can
get more. Two workspaces are neighbours if they differ in the group of one person. That person leaves the sum of
one group and joins that of another: where one user can add at most b, the sums change by at most 2 b in all, and
the sizes by 2. With Laplace noise of scale 2 b / ε each such set of numbers is ε-differentially private, an update's
numbers together by the sum of their shares (`SHARES`), and whatever is computed from them (means, gaps, checks of the
gate, weights of the controller) is so, too. Over updates the budget adds up.

The noise is drawn from the workspace's secret and the events of the period: it is the same however often
a number is asked for, and other where anything was changed.

**Dominated by noise**: a number is not shown if the standard error that the noise alone gives it exceeds a third of
everyone's mean quality (`Normal.is_readable`), and a check does not judge by it if that exceeds the limit of the check
(`Normal.can_test`). Both follow from noisy sizes and from everyone's values, so they tell nothing more of a person.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from fairstream.data import UNKNOWN
from fairstream.data.groups import Codes
from fairstream.evaluation import Evaluation, Protocol, UserResults
from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.evaluation.resampling import Array
from fairstream.service.gaps import TOO_FEW, too_noisy
from fairstream.service.settings import Privacy
from fairstream.strategies.controller import Estimate as Measure
from fairstream.strategies.controller import Measured

SHARES: Final = {
    "period sizes": 0.10,
    "period": 0.25,
    "held-out sizes": 0.10,
    "held-out": 0.15,
    "change": 0.20,
    "control sizes": 0.05,
    "control": 0.10,
    "control popularity": 0.05,
}
"""How the budget of an update is shared out."""
EVERYONE: Final = "all users"
_SENSITIVITY = 2.0
_SE_OF_LAPLACE = math.sqrt(2)
"""The standard deviation of Laplace's distribution, in units of its scale."""
_MAX_NOISE = 1 / 3
"""The largest standard error due to noise of a number that is shown, as a share of everyone's mean quality."""
_DOUBT = 0.05
"""How probable it may be that noise alone makes a group large enough to be reported."""
_CONFIDENCE = 0.95
_CHANCE_OF_REJECTION = 0.001
"""How probable it may be that noise alone carries a number beyond what a check allows for."""
_N_HALVINGS = 40
_DIGITS = 3
_TWO = 2


def noise_margin(noise: float, chance: float = _CHANCE_OF_REJECTION) -> float:
    """How far noise of this standard error carries a number at most, but for a chance (Laplace's distribution)."""
    return noise / _SE_OF_LAPLACE * math.log(1 / chance)


class Normal(NamedTuple):
    """A number and its standard error, that of the noise included."""

    value: float
    se: float
    noise: float = 0.0
    """The standard error that the noise alone gives it."""

    def margin(self, n_tests: int = 1) -> float:
        """Half of its 95 % interval; of several numbers all intervals hold together (Šidák's correction)."""
        return self._quantile(1 - _CONFIDENCE ** (1 / n_tests))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        return self.value - self.margin(), self.value + self.margin()

    def p_value(self, n_tests: int = 1) -> float:
        """How probable a number as far from 0 is if the truth is 0, for the furthest of so many numbers."""
        low, high = 0.0, 1.0
        for _ in range(_N_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._quantile(middle) >= abs(self.value) else (low, middle)
        return 1 - (1 - high) ** n_tests

    def _quantile(self, chance: float) -> float:
        """How far the number is from the truth at most, but for this chance.

        By the normal distribution for the users, and by Laplace's, which has longer tails, for the noise.
        """
        users = math.sqrt(max(0.0, self.se**2 - self.noise**2)) * NormalDist().inv_cdf(1 - chance / 2)
        return math.hypot(users, noise_margin(self.noise, chance))

    def is_readable(self, quality: float) -> bool:
        """Whether noise leaves enough of a number to show, beside everyone's mean quality."""
        return self.noise <= _MAX_NOISE * quality

    def can_test(self, limit: float) -> bool:
        """Whether noise leaves enough of a number to judge by it whether a limit holds."""
        return self.noise <= limit

    def published(self, n_tests: int = 1) -> list[Any]:
        """[value, [low, high]], rounded."""
        ends = (self.value + sign * self.margin(n_tests) for sign in (-1, 1))
        return [round(self.value, _DIGITS), [round(end, _DIGITS) for end in ends]]

    @classmethod
    def mean(cls, values: Array) -> Normal:
        """Of users' values, as if of a large population."""
        n = len(values)
        return cls(float(values.mean()), math.sqrt(float(values.var(ddof=1)) / n) if n > 1 else math.inf)


@dataclass(frozen=True)
class GroupMeans:
    """The groups that are large enough to report: the size of each, and the mean of those whose mean is known."""

    sizes: Mapping[str, float]
    means: Mapping[str, Normal]
    quality: float
    """Everyone's mean quality: what the noise is compared with."""

    def gaps(self) -> dict[str, Normal]:
        """Each group's mean minus that of the users of all other groups with a mean; readable gaps alone."""
        gaps = {}
        for name, own in self.means.items() if len(self.means) > 1 else ():
            others = [other for other in self.means if other != name]
            weights = np.array([self.sizes[other] for other in others])
            values, errors, noises = np.array([self.means[other] for other in others]).T * (weights / weights.sum())
            gap = Normal(own.value - float(values.sum()), math.hypot(own.se, *errors), math.hypot(own.noise, *noises))
            if gap.is_readable(self.quality):
                gaps[name] = gap
        return gaps

    def plus(self, change: GroupMeans, low: float, high: float) -> GroupMeans:
        """Both means added up."""
        means = {}
        for name, mean in self.means.items():
            other = change.means[name]
            value = min(max(mean.value + other.value, low), high)
            means[name] = Normal(value, math.hypot(mean.se, other.se), math.hypot(mean.noise, other.noise))
        return replace(self, means=means)

    def only(self, names: Collection[str]) -> GroupMeans:
        """Without the means of other groups."""
        return replace(self, means={name: mean for name, mean in self.means.items() if name in names})

    def readable(self) -> GroupMeans:
        """Without the means that noise dominates."""
        return self.only([name for name, mean in self.means.items() if mean.is_readable(self.quality)])


NO_GROUPS: Final = GroupMeans({}, {}, 0.0)


class Release:
    """The numbers of groups that one update may publish.

    Parameters
    ----------
    secret
        The workspace's.
    privacy
        The budget.
    min_group_size
        The fewest users with which a group is reported.
    label
        What is measured: the noise is another for each.

    """

    def __init__(self, secret: bytes, privacy: Privacy, min_group_size: int, label: str) -> None:
        self._secret, self.epsilon, self._label = secret, privacy.epsilon, label
        self._min_group_size = max(2, min_group_size)

    def sizes(self, what: str, codes: Codes, names: Sequence[str]) -> dict[str, float]:
        """The size of each group that is large enough; where one alone is not, the next smallest is left out with it.

        Else the mean over everyone minus those of the others would be that group's. With noise a group
        must be larger than `min_group_size` by so much that noise alone seldom makes it so.
        """
        scale, counts = _scale(what, self.epsilon), np.bincount(codes[codes >= 0], minlength=len(names))
        noisy = {name: float(counts[code]) + self._laplace(scale, what, name) for code, name in enumerate(names)}
        least = self._min_group_size + scale * math.log(0.5 / _DOUBT)
        kept = sorted((name for name in names if noisy[name] >= least), key=lambda name: noisy[name])
        if len(names) - len(kept) == 1:
            kept = kept[1:]
        return {name: noisy[name] for name in names if name in kept}

    def means(
        self,
        what: str,
        values: Array,
        codes: Codes,
        names: Sequence[str],
        sizes: Mapping[str, float],
        least: float = 0.0,
        quality: float | None = None,
    ) -> GroupMeans:
        """The mean of each of the groups, of values between `least` and 1; `quality` is everyone's, if not their mean.

        Summed up is how far users are from the mean of everyone, so that an error in a group's size hardly matters; and
        how much users differ is taken from everyone. Both are known without anybody's group.
        """
        values = np.clip(values, least, 1.0)
        everyone, variance = (float(values.mean()), float(values.var())) if len(values) else (0.0, 0.0)
        scale = _scale(what, self.epsilon) * max(1.0 - everyone, everyone - least)  # times what one user can add
        means = {}
        for code, name in enumerate(names):
            if (size := sizes.get(name)) is not None:
                total = float((values[codes == code] - everyone).sum()) + self._laplace(scale, what, name)
                noise = _SE_OF_LAPLACE * scale / size
                mean = min(max(everyone + total / size, least), 1.0)
                means[name] = Normal(mean, math.hypot(math.sqrt(variance / size), noise), noise)
        return GroupMeans(sizes, means, everyone if quality is None else quality)

    def measured(self, values: Array, codes: Codes, names: Sequence[str], popularity: Array | None) -> Measured:
        """What the controller of the disparity gets to see."""
        sizes = self.sizes("control sizes", codes, names)
        groups = self.means("control", values, codes, names, sizes).readable()
        quality = Normal.mean(values)
        gaps = {name: Measure(-gap.value, gap.se**2) for name, gap in groups.gaps().items()}
        standings = {}
        if popularity is not None:
            references = self.means("control popularity", popularity, codes, names, sizes).readable().means
            for name, own in groups.means.items():
                if name in gaps and name in references and min(own.value, references[name].value) > 0:
                    error = math.hypot(own.se / own.value, references[name].se / references[name].value)
                    standings[name] = Measure(math.log(own.value / references[name].value), error**2)
        return Measured(Measure(quality.value, quality.se**2), gaps, standings)

    def _laplace(self, scale: float, *names: str) -> float:
        """A draw that belongs to these names: unforeseeable without the secret, and always the same."""
        digest = hmac.digest(self._secret, "\x1f".join(("noise", self._label, *names)).encode(), "sha256")
        u = (int.from_bytes(digest[:7], "big") + 0.5) / 2**56 - 0.5
        return -scale * math.copysign(math.log1p(-2 * abs(u)), u)


def readable_from(epsilon: float | Literal["off"], quality: float) -> int:
    """How many tested users a group needs about until its mean over a period is shown, by everyone's mean quality.

    >>> readable_from(1.0, 0.1), readable_from(2.0, 0.1), readable_from(1.0, 0.2)
    (306, 153, 136)
    """
    return math.ceil(_SE_OF_LAPLACE * _scale("period", epsilon) * max(1 - quality, quality) / (_MAX_NOISE * quality))


def _scale(what: str, epsilon: float | Literal["off"]) -> float:
    """The scale of the noise where one user can add at most 1."""
    return 0.0 if epsilon == "off" else _SENSITIVITY / (epsilon * SHARES[what])


@dataclass(frozen=True, eq=False)
class Comparison:
    """The candidate beside the model in service on the same users: everyone's values, and the means of groups."""

    before: Array
    after: Array
    groups_before: GroupMeans
    groups_change: GroupMeans
    """Of the same groups as before: those whose mean is readable under the candidate, too."""
    epsilon: float | str = "off"

    @classmethod
    def of(
        cls, release: Release, before: UserResults, after: UserResults, names: Sequence[str], n_established: int
    ) -> Comparison:
        """From the results of both; groups are made up of the first `n_established` users."""
        values, codes = (ndcg_of(results) for results in (before, after)), established(before, n_established)
        old, new = values
        sizes = release.sizes("held-out sizes", codes, names)
        groups = release.means("held-out", old, codes, names, sizes)
        change = release.means("change", new - old, codes, names, sizes, -1.0, groups.quality)
        readable = groups.plus(change, 0.0, 1.0).readable().means
        return cls(old, new, groups.only(readable), change.only(readable), release.epsilon)

    @property
    def groups_after(self) -> GroupMeans:
        """The groups under the candidate."""
        return self.groups_before.plus(self.groups_change, 0.0, 1.0)

    def gains(self) -> dict[str, Any]:
        """How far the candidate is ahead, for everyone, each group, and each group's gap: [value, [low, high]]."""
        return {
            "everyone": _exact(Normal.mean(self.after - self.before)),
            "groups": {name: change.published() for name, change in self.groups_change.means.items()},
            "gaps": {name: change.published() for name, change in self.groups_change.gaps().items()},
        }


def ndcg_of(results: UserResults) -> Array:
    """Each user's NDCG."""
    return results.values_of(Protocol.named("strict").metrics["ndcg"])


def established(results: UserResults, n_established: int) -> Codes:
    """The groups of users who were known before the period; whoever has just appeared counts in no group.

    Else users could be made up until a group is just large enough to be reported if somebody belongs to it.
    """
    return np.where(results.users < n_established, results.codes, UNKNOWN)


def reported(
    evaluation: Evaluation, groups: GroupMeans, names: Sequence[str], advantaged: str | None, epsilon: float | str
) -> dict[str, Any]:
    """What is stored of an evaluation: every metric of everyone, and NDCG of the groups that are reported.

    `noise` is the part of each group's standard error that noise makes, `withheld` says of each other group why there
    is no number of it.
    """
    k = evaluation.tested.hits.shape[1]
    metrics = {name: _of_everyone(score) for name, score in evaluation.metrics.items()}
    metrics[f"ndcg@{k}"] = _by_group(evaluation.metrics[f"ndcg@{k}"], groups, names, advantaged)
    return {
        "metrics": {name: score.to_dict() for name, score in metrics.items()},
        "levels": {
            EVERYONE: _exact(Normal.mean(ndcg_of(evaluation.tested))),
            **{name: mean.published() for name, mean in groups.means.items()},
        },
        "noise": {name: round(mean.noise, _DIGITS + 1) for name, mean in groups.means.items()},
        "sizes": {name: 10 * round(size / 10) for name, size in groups.sizes.items()},
        "n_tested_users": evaluation.n_tested_users,
        "n_cold_users": evaluation.n_cold_users,
        "withheld": {
            name: too_noisy(epsilon) if name in groups.sizes else TOO_FEW
            for name in sorted(set(names) - set(groups.means))
        },
        "epsilon": epsilon,
    }


def _exact(found: Normal) -> list[Any]:
    return [found.value, list(found.interval)]


def _of_everyone(score: GroupScores) -> GroupScores:
    return GroupScores(score.mean, score.interval, {}, {}, None, None, None, None, None, None, None)


def _by_group(score: GroupScores, groups: GroupMeans, names: Sequence[str], advantaged: str | None) -> GroupScores:
    means, gaps = {name: round(mean.value, _DIGITS) for name, mean in groups.means.items()}, groups.gaps()
    if not gaps:
        by_group = {name: means.get(name) for name in sorted(names)}
        return GroupScores(score.mean, score.interval, by_group, {}, None, None, None, None, None, None, None)
    if advantaged not in gaps:  # of three groups or more nobody guesses
        advantaged = max(gaps, key=lambda name: groups.sizes[name]) if len(names) == _TWO else None
    order = sorted(names, key=lambda name: (name != advantaged, name))
    n_tests = len(gaps) if len(means) > _TWO else 1  # of two groups one is as far ahead as the other is behind
    # A gap that is surely there before one that is larger only because its group is small and its noise large.
    largest = max(gaps, key=lambda name: (abs(gaps[name].value) > gaps[name].margin(n_tests), abs(gaps[name].value)))
    last = min(gaps, key=lambda name: gaps[name].value)
    disparity = size = debiased = null_mean = None
    if advantaged is not None:
        disparity, se = _estimate(gaps[advantaged]), gaps[advantaged].se
        size, null_mean = abs(disparity.value), disparity.null_mean
        debiased = round(math.sqrt(max(0.0, size**2 - se**2)), _DIGITS)
    return GroupScores(
        mean=score.mean,
        interval=score.interval,
        by_group={name: means.get(name) for name in order},
        gaps={name: _estimate(gaps[name]) for name in order if name in gaps},
        largest_gap=_estimate(gaps[largest]._replace(value=abs(gaps[largest].value)), n_tests),
        largest_gap_group=largest,
        spread=None,  # the distance of the largest of several noisy means from the smallest is mostly noise
        disparity=disparity,
        abs_performance_disparity=size,
        abs_performance_disparity_debiased=debiased,
        null_mean=null_mean,
        advantaged=advantaged,
        furthest_behind=_estimate(gaps[last]._replace(value=-gaps[last].value), n_tests),
        furthest_behind_group=last,
    )


def _estimate(gap: Normal, n_tests: int = 1) -> Estimate:
    """With its interval, and how probable one as large is between equal groups, where it is the largest of several."""
    value, (low, high) = gap.published(n_tests)
    null_mean = round(gap.se * math.sqrt(2 / math.pi), _DIGITS)
    return Estimate(value, (low, high), round(gap.p_value(n_tests), _DIGITS), null_mean)
