"""What may be said of groups: sizes and means with noise, so that nobody's group follows from any of it.

All that an update stores or prints about groups comes from here, and is made before it is stored, so no reader can
get more. Two workspaces are neighbours if they differ in the group of one person. That person leaves the sum of
one group and joins that of another: where one user can add at most b, the sums change by at most 2 b in all, and
the sizes by 2. With Laplace noise of scale 2 b / ε each such set of numbers is ε-differentially private, an update's
numbers together by the sum of their shares (`SHARES`), and whatever is computed from them (means, gaps, checks of the
gate, weights of the controller) is so, too. Over updates the budget adds up.

The noise is drawn from the workspace's secret and the events of the period: it is the same however often
a number is asked for, and other where anything was changed.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from fairstream.data import UNKNOWN
from fairstream.data.groups import Codes
from fairstream.evaluation import Evaluation, Protocol, UserResults
from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.evaluation.resampling import Array
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
_DOUBT = 0.05
"""How probable it may be that noise alone makes a group large enough to be reported."""
_Z = 1.96
_DIGITS = 3
_TWO = 2


class Normal(NamedTuple):
    """A number and its standard error, that of the noise included."""

    value: float
    se: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        return self.value - _Z * self.se, self.value + _Z * self.se

    @property
    def published(self) -> list[Any]:
        """[value, [low, high]], rounded."""
        return [round(self.value, _DIGITS), [round(end, _DIGITS) for end in self.interval]]

    @classmethod
    def mean(cls, values: Array) -> Normal:
        """Of users' values, as if of a large population."""
        n = len(values)
        return cls(float(values.mean()), math.sqrt(float(values.var(ddof=1)) / n) if n > 1 else math.inf)


@dataclass(frozen=True)
class GroupMeans:
    """The groups that are reported: the size and the mean of each."""

    sizes: Mapping[str, float]
    means: Mapping[str, Normal]

    def gaps(self) -> dict[str, Normal]:
        """Each group's mean minus that of the users of all other reported groups; none where there is no other."""
        found = {}
        for name, own in self.means.items() if len(self.means) > 1 else ():
            others = [other for other in self.means if other != name]
            weights = np.array([self.sizes[other] for other in others])
            weights = weights / weights.sum()
            rest = float(weights @ [self.means[other].value for other in others])
            error = math.hypot(own.se, *(weights * [self.means[other].se for other in others]))
            found[name] = Normal(own.value - rest, error)
        return found

    def plus(self, change: GroupMeans, low: float, high: float) -> GroupMeans:
        """Both means added up."""
        means = {
            name: Normal(
                min(max(mean.value + change.means[name].value, low), high), math.hypot(mean.se, change.means[name].se)
            )
            for name, mean in self.means.items()
        }
        return GroupMeans(self.sizes, means)


NO_GROUPS: Final = GroupMeans({}, {})


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
        self._secret, self._epsilon, self._label = secret, privacy.epsilon, label
        self._min_group_size = max(2, min_group_size)

    def sizes(self, what: str, codes: Codes, names: Sequence[str]) -> dict[str, float]:
        """The size of each group that is large enough; where one alone is not, the next smallest is left out with it.

        Else the mean over everyone minus those of the others would be that group's. With noise a group
        must be larger than `min_group_size` by so much that noise alone seldom makes it so.
        """
        scale, counts = self._scale(what), np.bincount(codes[codes >= 0], minlength=len(names))
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
    ) -> GroupMeans:
        """The mean of each of the groups, of values between `least` and 1.

        Summed up is how far users are from the mean of everyone, so that an error in a group's size hardly matters; and
        how much users differ is taken from everyone. Both are known without anybody's group.
        """
        values = np.clip(values, least, 1.0)
        everyone, variance = (float(values.mean()), float(values.var())) if len(values) else (0.0, 0.0)
        scale = self._scale(what) * max(1.0 - everyone, everyone - least)  # what one user can add to a sum
        means = {}
        for code, name in enumerate(names):
            if (size := sizes.get(name)) is not None:
                total = float((values[codes == code] - everyone).sum()) + self._laplace(scale, what, name)
                error = math.sqrt(variance / size + 2 * (scale / size) ** 2)
                means[name] = Normal(min(max(everyone + total / size, least), 1.0), error)
        return GroupMeans(sizes, means)

    def measured(self, values: Array, codes: Codes, names: Sequence[str], popularity: Array | None) -> Measured:
        """What the controller of the disparity gets to see."""
        sizes = self.sizes("control sizes", codes, names)
        groups = self.means("control", values, codes, names, sizes)
        quality = Normal.mean(values)
        gaps = {name: Measure(-gap.value, gap.se**2) for name, gap in groups.gaps().items()}
        standings = {}
        if popularity is not None:
            references = self.means("control popularity", popularity, codes, names, sizes).means
            for name, own in groups.means.items():
                if name in gaps and min(own.value, references[name].value) > 0:
                    error = math.hypot(own.se / own.value, references[name].se / references[name].value)
                    standings[name] = Measure(math.log(own.value / references[name].value), error**2)
        return Measured(Measure(quality.value, quality.se**2), gaps, standings)

    def _scale(self, what: str) -> float:
        return 0.0 if self._epsilon == "off" else _SENSITIVITY / (self._epsilon * SHARES[what])

    def _laplace(self, scale: float, *names: str) -> float:
        """A draw that belongs to these names: unforeseeable without the secret, and always the same."""
        digest = hmac.digest(self._secret, "\x1f".join(("noise", self._label, *names)).encode(), "sha256")
        u = (int.from_bytes(digest[:7], "big") + 0.5) / 2**56 - 0.5
        return -scale * math.copysign(math.log1p(-2 * abs(u)), u)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The candidate beside the model in service on the same users: everyone's values, and the means of groups."""

    before: Array
    after: Array
    groups_before: GroupMeans
    groups_change: GroupMeans

    @classmethod
    def of(
        cls, release: Release, before: UserResults, after: UserResults, names: Sequence[str], n_established: int
    ) -> Comparison:
        """From the results of both; groups are made up of the first `n_established` users."""
        values, codes = (ndcg_of(results) for results in (before, after)), established(before, n_established)
        old, new = values
        sizes = release.sizes("held-out sizes", codes, names)
        return cls(
            old,
            new,
            release.means("held-out", old, codes, names, sizes),
            release.means("change", new - old, codes, names, sizes, -1.0),
        )

    @property
    def groups_after(self) -> GroupMeans:
        """The groups under the candidate."""
        return self.groups_before.plus(self.groups_change, 0.0, 1.0)

    def gains(self) -> dict[str, Any]:
        """How far the candidate is ahead, for everyone, each group, and each group's gap: [value, [low, high]]."""
        return {
            "everyone": _exact(Normal.mean(self.after - self.before)),
            "groups": {name: change.published for name, change in self.groups_change.means.items()},
            "gaps": {name: change.published for name, change in self.groups_change.gaps().items()},
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
    evaluation: Evaluation, groups: GroupMeans, names: Sequence[str], advantaged: str | None
) -> dict[str, Any]:
    """What is stored of an evaluation: every metric of everyone, and NDCG of the groups that are reported."""
    k = evaluation.tested.hits.shape[1]
    metrics = {name: _of_everyone(score) for name, score in evaluation.metrics.items()}
    metrics[f"ndcg@{k}"] = _by_group(evaluation.metrics[f"ndcg@{k}"], groups, names, advantaged)
    return {
        "metrics": {name: score.to_dict() for name, score in metrics.items()},
        "levels": {
            EVERYONE: _exact(Normal.mean(ndcg_of(evaluation.tested))),
            **{name: mean.published for name, mean in groups.means.items()},
        },
        "sizes": {name: 10 * round(size / 10) for name, size in groups.sizes.items()},
        "n_tested_users": evaluation.n_tested_users,
        "n_cold_users": evaluation.n_cold_users,
        "excluded_groups": sorted(set(names) - set(groups.means)),
    }


def _exact(found: Normal) -> list[Any]:
    return [found.value, list(found.interval)]


def _of_everyone(score: GroupScores) -> GroupScores:
    return GroupScores(score.mean, score.interval, {}, {}, None, None, None, None, None, None, None)


def _by_group(score: GroupScores, groups: GroupMeans, names: Sequence[str], advantaged: str | None) -> GroupScores:
    gaps = {name: _estimate(gap) for name, gap in groups.gaps().items()}
    if not gaps:
        by_group = {
            name: round(groups.means[name].value, _DIGITS) if name in groups.means else None for name in sorted(names)
        }
        return GroupScores(score.mean, score.interval, by_group, {}, None, None, None, None, None, None, None)
    if advantaged not in gaps:  # of three groups or more nobody guesses
        advantaged = max(gaps, key=lambda name: groups.sizes[name]) if len(names) == _TWO else None
    order = sorted(names, key=lambda name: (name != advantaged, name))
    largest = max(gaps, key=lambda name: abs(gaps[name].value))
    last = min(gaps, key=lambda name: gaps[name].value)
    means = {name: mean.value for name, mean in groups.means.items()}
    spread = max(means.values()) - min(means.values())
    disparity = size = debiased = null_mean = None
    if advantaged is not None:
        disparity, se = gaps[advantaged], groups.gaps()[advantaged].se
        size, null_mean = abs(disparity.value), disparity.null_mean
        debiased = round(math.sqrt(max(0.0, size**2 - se**2)), _DIGITS)
    return GroupScores(
        mean=score.mean,
        interval=score.interval,
        by_group={name: round(means[name], _DIGITS) if name in means else None for name in order},
        gaps={name: gaps[name] for name in order if name in gaps},
        largest_gap=Estimate(abs(gaps[largest].value), None, gaps[largest].p_value, gaps[largest].null_mean),
        largest_gap_group=largest,
        spread=Estimate(round(spread, _DIGITS)),
        disparity=disparity,
        abs_performance_disparity=size,
        abs_performance_disparity_debiased=debiased,
        null_mean=null_mean,
        advantaged=advantaged,
        furthest_behind=replace(gaps[last], value=-gaps[last].value, interval=None),
        furthest_behind_group=last,
    )


def _estimate(gap: Normal) -> Estimate:
    """With its interval, and how probable one as large is between equal groups, by the normal distribution."""
    value, interval = gap.published
    p_value = math.erfc(abs(gap.value) / (gap.se * math.sqrt(2))) if gap.se > 0 else 1.0
    return Estimate(value, tuple(interval), round(p_value, _DIGITS), round(gap.se * math.sqrt(2 / math.pi), _DIGITS))
