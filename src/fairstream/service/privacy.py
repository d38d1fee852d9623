"""Differential privacy of groups: sizes and means with noise, from which nobody's group follows.

All that an update stores or prints about groups comes from here, so no reader can get more. Two workspaces are
neighbours if they differ in the group of one person. That person leaves the sum of one group and joins that of
another: where one user adds at most b, the sums change by at most 2 b in all, and the sizes by 2. With Laplace noise of
scale 2 b / ε each such set of numbers is ε-differentially private, the numbers of an update together by the sum of
their shares (`SHARES`), and so is everything computed from them: means, gaps, the gate's checks, the level that the
target chooses, regret. Over updates the budget adds up.

The workspace's secret and the events of the period determine the noise: asking again gives the same number.

**Dominated by noise**: a number is withheld if the standard error of its noise exceeds a third of everyone's mean
quality (`Normal.is_readable`), and a check ignores it if that error exceeds the check's limit (`Normal.can_test`). Both
follow from noisy sizes and everyone's values, so they reveal nothing more.
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
from fairstream.evaluation import DEFAULT_METRICS, Evaluation, UserResults
from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.evaluation.regret import MAX_WIDTH
from fairstream.evaluation.resampling import Array
from fairstream.models import NO_LEVEL, Level
from fairstream.service.gaps import TOO_FEW, too_noisy
from fairstream.service.settings import Privacy
from fairstream.strategies import PeriodReplay, PooledReplay, past_regret
from fairstream.strategies.replay import GroupReplay

SHARES: Final = {  # how the budget of an update is shared out
    "period sizes": 0.10,
    "period": 0.25,
    "held-out sizes": 0.10,
    "held-out": 0.15,
    "change": 0.20,
    "replay sizes": 0.05,
    "replay": 0.05,
    "replay changes": 0.10,  # divided by the number of levels
}
EVERYONE: Final = "all users"
RUNGS: Final = (2.0, 5.0)
"""The weights of the levels that are replayed with noise: each level takes its part of the budget."""
MAX_CHANGE: Final = 0.1
"""By how much a level can change one user's value in the replay with noise; what goes beyond is cut off."""
_SENSITIVITY = 2.0
_SE_OF_LAPLACE = math.sqrt(2)  # the standard deviation of Laplace's distribution, in units of its scale
_MAX_NOISE = 1 / 3  # the largest noise of a published number, as a share of everyone's mean quality
_DOUBT = 0.05  # the probability that noise alone makes a group large enough to be reported
_CONFIDENCE = 0.95
_N_HALVINGS = 40
_DIGITS = 3


def noise_margin(noise: float, chance: float = 0.001) -> float:
    """The largest error due to noise of this standard error, except with probability `chance` (Laplace)."""
    return noise / _SE_OF_LAPLACE * math.log(1 / chance)


class Normal(NamedTuple):
    """A number and its standard error, which includes that of the noise."""

    value: float
    se: float
    noise: float = 0.0  # the standard error of the noise alone

    def margin(self, n_tests: int = 1) -> float:
        """Half of the 95 % interval; of several numbers all intervals hold together (Šidák's correction)."""
        return self._quantile(1 - _CONFIDENCE ** (1 / n_tests))

    @property
    def interval(self) -> tuple[float, float]:
        return self.value - self.margin(), self.value + self.margin()

    def p_value(self, n_tests: int = 1) -> float:
        """The p-value of the null hypothesis 0, for the number furthest from 0 of `n_tests`."""
        low, high = 0.0, 1.0
        for _ in range(_N_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._quantile(middle) >= abs(self.value) else (low, middle)
        return 1 - (1 - high) ** n_tests

    def _quantile(self, chance: float) -> float:
        """The largest error, except with this probability: normal for the users, Laplace for the noise."""
        users = math.sqrt(max(0.0, self.se**2 - self.noise**2)) * NormalDist().inv_cdf(1 - chance / 2)
        return math.hypot(users, noise_margin(self.noise, chance))

    def is_readable(self, quality: float) -> bool:
        return self.noise <= _MAX_NOISE * quality

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
    quality: float  # everyone's mean quality

    def gaps(self) -> dict[str, Normal]:
        """Each group's mean minus that of the users of all other groups with a mean, where readable."""
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
        means = {}
        for name, mean in self.means.items():
            other = change.means[name]
            value = min(max(mean.value + other.value, low), high)
            means[name] = Normal(value, math.hypot(mean.se, other.se), math.hypot(mean.noise, other.noise))
        return replace(self, means=means)

    def only(self, names: Collection[str]) -> GroupMeans:
        return replace(self, means={name: mean for name, mean in self.means.items() if name in names})

    def readable(self) -> GroupMeans:
        return self.only([name for name, mean in self.means.items() if mean.is_readable(self.quality)])


NO_GROUPS: Final = GroupMeans({}, {}, 0.0)


class Release:
    """The numbers of groups that one update may publish; `label` and the workspace's secret determine the noise."""

    def __init__(self, secret: bytes, privacy: Privacy, min_group_size: int, label: str) -> None:
        self._secret, self.epsilon, self._label = secret, privacy.epsilon, label
        self._min_group_size = max(2, min_group_size)

    def sizes(self, what: str, codes: Codes, names: Sequence[str]) -> dict[str, float]:
        """The size of each group that is large enough; if one alone is not, the next smallest is left out, too.

        Else the mean over everyone minus those of the others would reveal that group's. The margin above
        `min_group_size` makes it improbable that noise alone makes a group large enough.
        """
        scale, counts = _scale(what, self.epsilon), np.bincount(codes[codes >= 0], minlength=len(names))
        noisy = {name: float(counts[code]) + self._laplace(scale, what, name) for code, name in enumerate(names)}
        minimum = self._min_group_size + scale * math.log(0.5 / _DOUBT)
        large = sorted((name for name in names if noisy[name] >= minimum), key=lambda name: noisy[name])
        if len(names) - len(large) == 1:
            large = large[1:]
        return {name: noisy[name] for name in names if name in large}

    def means(
        self,
        what: str,
        values: Array,
        codes: Codes,
        names: Sequence[str],
        sizes: Mapping[str, float],
        least: float = 0.0,
        quality: float | None = None,
        *,
        most: float = 1.0,
        part: str = "",
        n_parts: int = 1,
    ) -> GroupMeans:
        """The mean of each group, of values between `least` and `most`; `quality` defaults to everyone's mean.

        It sums deviations from everyone's mean, so that an error in a group's size hardly matters, and takes the
        variance from everyone. Both are known without anybody's group. Where one share of the budget pays for several
        sets of means, `part` names this one of `n_parts`.
        """
        values = np.clip(values, least, most)
        everyone, variance = (float(values.mean()), float(values.var())) if len(values) else (0.0, 0.0)
        scale = n_parts * _scale(what, self.epsilon) * max(most - everyone, everyone - least)  # what one user can add
        means = {}
        for code, name in enumerate(names):
            if (size := sizes.get(name)) is not None:
                total = float((values[codes == code] - everyone).sum()) + self._laplace(scale, what, part, name)
                noise = _SE_OF_LAPLACE * scale / size
                mean = min(max(everyone + total / size, least), most)
                means[name] = Normal(mean, math.hypot(math.sqrt(variance / size), noise), noise)
        return GroupMeans(sizes, means, everyone if quality is None else quality)

    def replay(self, values: Array, codes: Codes, names: Sequence[str], levels: Sequence[Level]) -> PeriodReplay:
        """All levels on a period, from the users' values (U, L); with noise a few levels (`RUNGS`).

        A user's changes at these levels are cut off at ± `MAX_CHANGE`. The variance is that of everyone plus that of
        the noise.
        """
        if self.epsilon == "off":
            return PeriodReplay.of(levels, values, codes, names, self._min_group_size)
        tried = [at for at, level in enumerate(levels) if level == NO_LEVEL or level.weight in RUNGS]
        sizes = self.sizes("replay sizes", codes, names)
        plain = self.means("replay", values[:, 0], codes, names, sizes).readable().means
        changes, variances = ({name: [0.0] for name in plain} for _ in range(2))
        for at in tried[1:]:
            change = values[:, at] - values[:, 0]
            options: dict[str, Any] = {"least": -MAX_CHANGE, "most": MAX_CHANGE, "n_parts": len(tried) - 1}
            moved = self.means("replay changes", change, codes, names, sizes, part=str(levels[at]), **options).means
            for name in plain:
                changes[name].append(moved[name].value)
                variances[name].append(moved[name].se ** 2)
        groups = {
            name: GroupReplay(sizes[name], mean.value, tuple(changes[name]), tuple(variances[name]), mean.se**2)
            for name, mean in plain.items()
        }
        return PeriodReplay(tuple(levels[at] for at in tried), groups)

    def _laplace(self, scale: float, *names: str) -> float:
        """A draw that the secret and these names determine."""
        digest = hmac.digest(self._secret, "\x1f".join(("noise", self._label, *names)).encode(), "sha256")
        u = (int.from_bytes(digest[:7], "big") + 0.5) / 2**56 - 0.5
        return -scale * math.copysign(math.log1p(-2 * abs(u)), u)


def readable_from(epsilon: float | Literal["off"], quality: float) -> int:
    """About how many tested users a group needs for a readable mean of a period, by everyone's mean quality.

    >>> readable_from(1.0, 0.1), readable_from(2.0, 0.1), readable_from(1.0, 0.2)
    (306, 153, 136)
    """
    return math.ceil(_SE_OF_LAPLACE * _scale("period", epsilon) * max(1 - quality, quality) / (_MAX_NOISE * quality))


def _scale(what: str, epsilon: float | Literal["off"]) -> float:
    """The scale of the noise where one user can add at most 1."""
    return 0.0 if epsilon == "off" else _SENSITIVITY / (epsilon * SHARES[what])


@dataclass(frozen=True, eq=False)
class Comparison:
    """The candidate and the model in service on the same users: everyone's values, and the means of groups."""

    before: Array
    after: Array
    groups_before: GroupMeans
    groups_change: GroupMeans  # of the groups whose mean is readable under both models
    epsilon: float | str = "off"
    is_established: np.ndarray[Any, np.dtype[np.bool_]] | None = None  # which users were known before the period

    @classmethod
    def of(
        cls, release: Release, before: UserResults, after: UserResults, names: Sequence[str], n_established: int
    ) -> Comparison:
        """From the results of both; groups are made up of the first `n_established` users."""
        old, new, codes = ndcg_of(before), ndcg_of(after), established(before, n_established)
        sizes = release.sizes("held-out sizes", codes, names)
        groups = release.means("held-out", old, codes, names, sizes)
        change = release.means("change", new - old, codes, names, sizes, -1.0, groups.quality)
        readable = groups.plus(change, 0.0, 1.0).readable().means
        known = before.users < n_established
        return cls(old, new, groups.only(readable), change.only(readable), release.epsilon, known)

    @property
    def groups_after(self) -> GroupMeans:
        return self.groups_before.plus(self.groups_change, 0.0, 1.0)

    def gains(self) -> dict[str, Any]:
        """The candidate's gain for everyone, each group, and each group's gap: [value, [low, high]]."""
        return {
            "everyone": _exact(Normal.mean(self.after - self.before)),
            "groups": {name: change.published() for name, change in self.groups_change.means.items()},
            "gaps": {name: change.published() for name, change in self.groups_change.gaps().items()},
        }


def ndcg_of(results: UserResults) -> Array:
    """Each user's NDCG."""
    return results.values_of(DEFAULT_METRICS["ndcg"])


def established(results: UserResults, n_established: int) -> Codes:
    """The groups of users who were known before the period; newcomers count in none.

    Else an attacker could invent users until a group is just large enough to be reported if a victim belongs to it.
    """
    return np.where(results.users < n_established, results.codes, UNKNOWN)


def reported(
    evaluation: Evaluation, groups: GroupMeans, names: Sequence[str], advantaged: str | None, epsilon: float | str
) -> dict[str, Any]:
    """The stored form of an evaluation: every metric of everyone, and NDCG of the reported groups.

    `noise` is the noise's part of each group's standard error, `withheld` the reason why another group has no number.
    """
    k = evaluation.tested.hits.shape[1]
    metrics = {name: GroupScores(score.mean, score.interval) for name, score in evaluation.metrics.items()}
    metrics[f"ndcg@{k}"] = _by_group(evaluation.metrics[f"ndcg@{k}"], groups, names, advantaged)
    return {
        "metrics": {name: score.to_dict() for name, score in metrics.items()},
        "levels": {EVERYONE: _exact(Normal.mean(ndcg_of(evaluation.tested)))}
        | {name: mean.published() for name, mean in groups.means.items()},
        "noise": {name: round(mean.noise, _DIGITS + 1) for name, mean in groups.means.items()},
        "sizes": {name: 10 * round(size / 10) for name, size in groups.sizes.items()},
        "n_tested_users": evaluation.n_users,
        "n_cold_users": evaluation.n_cold_users,
        "withheld": {
            name: too_noisy(epsilon) if name in groups.sizes else TOO_FEW
            for name in sorted(set(names) - set(groups.means))
        },
        "epsilon": epsilon,
    }


def reported_regret(
    periods: Sequence[PeriodReplay], level: Level, names: Sequence[str], epsilon: float | str
) -> dict[str, Any]:
    """The regret of each group at a level over past periods, and why it is withheld from others.

    It is withheld where the 95 % interval of what a level changes is wider than `MAX_WIDTH` of the group's mean.
    """
    pooled, regret = PooledReplay.of(periods), past_regret(periods, level)
    withheld = dict.fromkeys(names, TOO_FEW if epsilon == "off" else too_noisy(epsilon))
    found = {}
    for g, name in enumerate(() if pooled is None else pooled.names):
        assert pooled is not None
        is_readable = 2 * 1.96 * float(pooled.se[g, 1:].mean()) <= MAX_WIDTH * float(pooled.mean[g])
        if is_readable and name in names:  # a group may have vanished
            own, _ = regret[name], withheld.pop(name)
            found[name] = [round(float(own.regret), _DIGITS), [round(float(end), _DIGITS) for end in own.interval]]
    return {"regret": found, "withheld": withheld}


def _exact(mean: Normal) -> list[Any]:
    return [mean.value, list(mean.interval)]


def _by_group(score: GroupScores, groups: GroupMeans, names: Sequence[str], advantaged: str | None) -> GroupScores:
    means, gaps = {name: round(mean.value, _DIGITS) for name, mean in groups.means.items()}, groups.gaps()
    if not gaps:
        return GroupScores(score.mean, score.interval, {name: means.get(name) for name in sorted(names)})
    if advantaged not in gaps:  # with three groups or more it must be declared
        advantaged = max(gaps, key=lambda name: groups.sizes[name]) if len(names) == 2 else None
    order = sorted(names, key=lambda name: (name != advantaged, name))
    n_tests = len(gaps) if len(means) > 2 else 1  # two groups have one gap
    # A significant gap goes before one that is larger only because its group is small and its noise large.
    largest = max(gaps, key=lambda name: (abs(gaps[name].value) > gaps[name].margin(n_tests), abs(gaps[name].value)))
    last = min(gaps, key=lambda name: gaps[name].value)
    disparity = size = debiased = null_mean = None
    if advantaged is not None:
        disparity, se = _estimate(gaps[advantaged]), gaps[advantaged].se
        size, null_mean = abs(disparity.value), disparity.null_mean
        debiased = round(math.sqrt(max(0.0, size**2 - se**2)), _DIGITS)
    return GroupScores(  # without `spread`: the distance between the extremes of noisy means is mostly noise
        mean=score.mean,
        interval=score.interval,
        by_group={name: means.get(name) for name in order},
        gaps={name: _estimate(gaps[name]) for name in order if name in gaps},
        largest_gap=_estimate(gaps[largest]._replace(value=abs(gaps[largest].value)), n_tests),
        largest_gap_group=largest,
        disparity=disparity,
        abs_performance_disparity=size,
        abs_performance_disparity_debiased=debiased,
        null_mean=null_mean,
        advantaged=advantaged,
        furthest_behind=_estimate(gaps[last]._replace(value=-gaps[last].value), n_tests),
        furthest_behind_group=last,
    )


def _estimate(gap: Normal, n_tests: int = 1) -> Estimate:
    value, (low, high) = gap.published(n_tests)
    null_mean = round(gap.se * math.sqrt(2 / math.pi), _DIGITS)
    return Estimate(value, (low, high), round(gap.p_value(n_tests), _DIGITS), null_mean)
