"""Differential privacy of groups: sizes and means with noise, which reveal nobody's group.

All numbers of groups that an update stores or prints come from here, so no reader can get more. Two workspaces are
neighbours if they differ in the group of one person. That person leaves the sum of one group and joins that of
another: where one user adds at most b, the sums move by √2 b. With Gaussian noise of the standard deviation √2 b / μ on
each they are μ-private, and so is everything computed from them: means, gaps, the gate's checks, the level that the
target chooses, regret. Squared, the μ of all published numbers add up; `Budget` bounds their sum in a quarter.

The workspace's secret and the events of the period determine the noise: asking again gives the same number.

**Worth its cost**: a number is bought with as little noise as makes it useful. A published number has noise of at most
half of its sampling error; other numbers are withheld, with the reason. Costs follow from the published sizes of groups
and from everyone's values, so that they reveal nothing more.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data.groups import Codes
from fairstream.evaluation import DEFAULT_METRICS, Evaluation, UserResults
from fairstream.evaluation.by_group import GroupScores
from fairstream.evaluation.private_groups import (
    MAX_NOISE,
    GroupMeans,
    GroupNoise,
    Normal,
    noise_margin,
    noise_scale,
    scores_by_group,
    value_range,
)
from fairstream.evaluation.regret import MAX_WIDTH
from fairstream.evaluation.resampling import Array
from fairstream.models import NO_LEVEL, Level
from fairstream.service.budget import DAY, QUARTER, SHARES, Budget, mu_of
from fairstream.service.gaps import IN_REPLAY, TOO_FEW, TOO_NOISY
from fairstream.service.settings import LiveConfig
from fairstream.strategies import PeriodReplay, PooledReplay, past_regret
from fairstream.strategies.replay import GroupReplay

EVERYONE: Final = "all users"
KNOWN: Final = "all users known before"
Mask = np.ndarray[Any, np.dtype[np.bool_]]
RUNGS: Final = (2.0, 5.0)
"""The weights of the levels that are replayed with noise: each level takes its part of the budget."""
MAX_CHANGE: Final = 0.1
"""By how much a level can change one user's value in the replay with noise; what goes beyond is cut off."""
_AIM = 0.94 * MAX_NOISE  # sizes are not known exactly
_OF_SIZES, _OF_LEVEL = 0.1, 0.25  # parts of a cost: for the sizes of groups, and for the means before a change
_PAYABLE = 1 / 3  # of a quarter's budget: a group that costs more has no say in what is spent for all groups
_DOUBT = 0.05  # the probability that noise alone makes a group large enough to be reported
_DIGITS = 3
NO_GROUPS: Final = GroupMeans({}, {}, why=TOO_FEW)


class Release:
    """The numbers of groups that one update may publish; `label` and the workspace's secret determine the noise."""

    def __init__(self, secret: bytes, min_group_size: int, label: str, budget: Budget) -> None:
        self._noise, self.budget = GroupNoise(secret, label), budget
        self._min_group_size = max(2, min_group_size)

    def all_sizes(self, codes: Codes, names: Sequence[str]) -> None:
        """Publish the sizes of the groups among all people, about once a month."""
        cost = self.budget.limit("sizes") * _PAYABLE
        if self.budget.allowed("sizes") >= cost:
            sizes = self._noise.sizes("all", codes, names, cost)
            self.budget.sizes = {name: max(1, round(size)) for name, size in sizes.items()}
            self.budget.spend("sizes", cost)

    def report(self, values: Array, codes: Codes, names: Sequence[str], purpose: str = "report") -> GroupMeans:
        """The mean of each group of users, as soon as its gaps are worth what they cost; `values` are from 0 to 1."""
        part = 1 - _OF_SIZES
        b, variance = value_range(values, codes, 0.0, 1.0)
        n_all = int(np.count_nonzero(codes >= 0))

        def noise(n: float) -> float:  # with which the noise of the group's gap is `_AIM` of its sampling error
            return _AIM * math.sqrt(variance * n * (1 - n / n_all)) / n

        spent, why = self._buy(purpose, part, b, noise, codes, names)
        if spent is None:
            return replace(NO_GROUPS, why=why)
        sizes = self._sizes(purpose, codes, names, spent * _OF_SIZES)
        return self._noise.means(purpose, values, codes, names, sizes, spent * part).readable()

    def compare(
        self, before: Array, after: Array, codes: Codes, names: Sequence[str], max_fall: float, is_judged: Mask
    ) -> Comparison:
        """Compare users' values under the model in service and a candidate, so that a fall can be seen in groups."""
        groups, changes, change = NO_GROUPS, NO_GROUPS, after - before
        if len(names) > 1:
            groups, part = replace(NO_GROUPS, n_groups=len(names)), 1 - _OF_SIZES - _OF_LEVEL
            b, _ = value_range(change, codes, -1.0, 1.0)
            noise = max(1e-9, 0.9 * max_fall * float(before.mean()))
            spent, why = self._buy("gate", part, b, lambda n: noise, codes, names)
            if spent is None:
                groups = replace(groups, why=why)
            else:
                sizes = self._sizes("held-out", codes, names, spent * _OF_SIZES)
                groups = self._noise.means("held-out", before, codes, names, sizes, spent * _OF_LEVEL)
                changes = self._noise.means("change", change, codes, names, sizes, spent * part, -1.0)
        return Comparison(before[is_judged], after[is_judged], groups, changes, EVERYONE if is_judged.all() else KNOWN)

    def replay(self, values: Array, codes: Codes, names: Sequence[str], levels: Sequence[Level]) -> PeriodReplay | None:
        """All levels on a period, from the users' values (U, L); with noise a few levels (`RUNGS`), if affordable.

        A user's changes at these levels are cut off at ± `MAX_CHANGE`. The variance is that of everyone plus that of
        the noise.
        """
        if self.budget.is_off:
            return PeriodReplay.of(levels, values, codes, names, self._min_group_size)
        tried = [at for at, level in enumerate(levels) if level == NO_LEVEL or level.weight in RUNGS]
        changes = np.clip(values[:, tried[1:]] - values[:, :1], -MAX_CHANGE, MAX_CHANGE)
        part, n_changes = 1 - _OF_SIZES - _OF_LEVEL, max(1, len(tried) - 1)
        own = changes[codes >= 0]
        variance = max(float(own.var(axis=0).mean()) if own.size else 0.0, 1e-9)

        def noise(n: float) -> float:
            return MAX_NOISE * math.sqrt(variance / n)

        # As much noise as sampling error will do: past periods are pooled.
        spent, _ = self._buy("target", part / n_changes, MAX_CHANGE, noise, codes, names, enough=MAX_NOISE**2)
        if spent is None:
            return None
        sizes = self._sizes("replay", codes, names, spent * _OF_SIZES)
        plain = self._noise.means("replay", values[:, 0], codes, names, sizes, spent * _OF_LEVEL).means
        change, variances = ({name: [0.0] for name in plain} for _ in range(2))
        for at, column in zip(tried[1:], changes.T, strict=True):
            what, ends = f"replay {levels[at]}", (-MAX_CHANGE, MAX_CHANGE)
            moved = self._noise.means(what, column, codes, names, sizes, spent * part / n_changes, *ends).means
            for name in plain:
                change[name].append(moved[name].value)
                variances[name].append(moved[name].se ** 2)
        groups = {
            name: GroupReplay(sizes[name], mean.value, tuple(change[name]), tuple(variances[name]), mean.se**2)
            for name, mean in plain.items()
        }
        return PeriodReplay(tuple(levels[at] for at in tried), groups)

    def _buy(
        self,
        what: str,
        part: float,
        b: float,
        noise: Callable[[float], float],
        codes: Codes,
        names: Sequence[str],
        enough: float = 1.0,
    ) -> tuple[float | None, str]:
        """Spend the cost of means with this noise in the smallest payable group; None, and why, if it is too much.

        `noise` is a function of the group's expected number of users, each of whom adds at most `b` to a sum; `part` of
        the cost pays for the mean. Less is spent if the budget has less, but at least the share `enough` of the cost.
        """
        if self.budget.is_off:
            return math.inf, ""
        n, sizes = int(np.count_nonzero(codes >= 0)), self.budget.sizes or dict.fromkeys(names, 1.0)
        expected = [n * sizes.get(name, 0.0) / sum(sizes.values()) for name in names]
        large = [size for size in expected if self._min_group_size <= size < n]
        if len(large) < 2:
            return None, TOO_FEW
        costs = [2 * b**2 * (1 - 1 / len(names)) / (size * noise(size)) ** 2 / part for size in large]
        payable = [cost for cost in costs if cost <= self.budget.limit(what) * _PAYABLE]
        price, allowed = max(payable, default=min(costs)), self.budget.allowed(what)
        if price * enough > allowed:
            return None, IN_REPLAY if self.budget.waits else self._too_early(what, price * enough)
        spent = min(price, allowed)
        self.budget.spend(what, spent)
        return spent, ""

    def _too_early(self, what: str, cost: float) -> str:
        """Why numbers wait: the budget will allow them later, or never."""
        if (when := self.budget.when(what, cost)) is None:
            return TOO_NOISY
        day = datetime.fromtimestamp(when / 1e6, UTC) + timedelta(days=1)
        return f"too few people were tested yet; the privacy budget allows numbers of groups from about {day:%Y-%m-%d}"

    def _sizes(self, what: str, codes: Codes, names: Sequence[str], cost: float) -> dict[str, float]:
        """The size of each group that is large enough; if one alone is not, the next smallest is left out, too.

        Otherwise the mean over everyone minus those of the others would reveal that group's. The margin above
        `min_group_size` makes it improbable that noise alone makes a group large enough.
        """
        sizes = self._noise.sizes(what, codes, names, cost)
        minimum = self._min_group_size + noise_margin(noise_scale(1.0, cost), _DOUBT)
        small = [name for name in names if sizes[name] < minimum]
        if len(small) == 1:
            small.append(min((name for name in names if name not in small), key=lambda name: sizes[name]))
        return {name: size for name, size in sizes.items() if name not in small}


def people_needed(epsilon: float, quality: float, days: float) -> int:
    """About how many people two equal groups need for a gap to be published every so many days.

    `quality` is everyone's mean; the variance of users' values is taken to be a quarter of what hits would have.

    >>> people_needed(4.0, 0.14, 30), people_needed(4.0, 0.14, 91)
    (3561, 1174)
    """
    b, variance = max(1 - quality, quality), quality * (1 - quality) / 4
    accrued = SHARES["report"] * mu_of(epsilon) ** 2 * days * DAY / QUARTER
    return math.ceil(4 * b**2 / (_AIM**2 * variance * (1 - _OF_SIZES) * accrued))


def group_names(values: pa.Array, config: LiveConfig, secret: bytes) -> list[str]:
    """The names of the groups: the declared ones, or values that enough people have.

    How many are enough is secret, so that a name does not reveal the value of the last person it needed.
    """
    if not len(values):
        return []
    if config.groups is not None:
        return list(config.groups)
    counts, least, names = pc.value_counts(values).to_pylist(), config.gate.min_group_size, []
    for each in counts:
        name = each["values"]
        digest = hmac.digest(secret, f"enough people\x1f{name}".encode(), "sha256")
        if each["counts"] >= least + int.from_bytes(digest[:6], "big") % (least + 1) or name == config.advantaged:
            names.append(name)
    return sorted(names)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The candidate and the model in service on the same users: the values of those who judge, and means of groups."""

    before: Array
    after: Array
    groups_before: GroupMeans
    groups_change: GroupMeans
    who: str = EVERYONE  # the users who judge: all, or those known before the period

    @property
    def groups_after(self) -> GroupMeans:
        return self.groups_before.plus(self.groups_change)

    def gains(self) -> dict[str, Any]:
        """The candidate's gain for everyone, each group, and each group's gap: [value, [low, high]]."""
        groups, gaps = self.groups_change.readable().means, self.groups_change.gaps()
        return {
            "everyone": exact(Normal.mean(self.after - self.before)),
            "groups": {name: change.published() for name, change in groups.items()},
            "gaps": {name: change.published() for name, change in gaps.items() if change.is_readable},
        }


def ndcg_of(results: UserResults) -> Array:
    """Each user's NDCG."""
    return results.values_of(DEFAULT_METRICS["ndcg"])


def reported(
    evaluation: Evaluation, groups: GroupMeans, names: Sequence[str], advantaged: str | None, epsilon: float | str
) -> dict[str, Any]:
    """The stored form of an evaluation: every metric of everyone, and NDCG of the reported groups.

    `noise` is the noise's part of each group's standard error, `withheld` the reason why another group has no number.
    """
    k = evaluation.tested.hits.shape[1]
    metrics = {name: GroupScores(score.mean, score.interval) for name, score in evaluation.metrics.items()}
    metrics[f"ndcg@{k}"] = scores_by_group(evaluation.metrics[f"ndcg@{k}"], groups, names, advantaged)
    return {
        "metrics": {name: score.to_dict() for name, score in metrics.items()},
        "levels": {EVERYONE: exact(Normal.mean(ndcg_of(evaluation.tested)))}
        | {name: mean.published() for name, mean in groups.means.items()},
        "noise": {name: round(mean.noise, _DIGITS + 1) for name, mean in groups.means.items()},
        "sizes": {name: 10 * round(size / 10) for name, size in groups.sizes.items()},
        "n_tested_users": evaluation.n_users,
        "n_cold_users": evaluation.n_cold_users,
        "withheld": _withheld(groups, names),
        "epsilon": epsilon,
    }


def reported_share(values: Array, groups: GroupMeans, names: Sequence[str]) -> dict[str, Any]:
    """The stored form of the share of people who did something: of everyone, and of the reported groups."""
    return {
        "n_users": len(values),
        "everyone": exact(Normal.mean(values)),
        "by_group": {name: mean.published() for name, mean in groups.means.items()},
        "withheld": _withheld(groups, names),
    }


def _withheld(groups: GroupMeans, names: Sequence[str]) -> dict[str, str]:
    """Why groups have no number."""
    missing = sorted(set(names) - set(groups.means))
    return {name: TOO_NOISY if name in groups.sizes else groups.why or TOO_FEW for name in missing}


def reported_regret(
    periods: Sequence[PeriodReplay], level: Level, names: Sequence[str], epsilon: float | str
) -> dict[str, Any]:
    """The regret of each group at a level over past periods, and why it is withheld from others.

    It is withheld where the 95 % interval of what a level changes is wider than `MAX_WIDTH` of the group's mean.
    """
    pooled, regret = PooledReplay.of(periods), past_regret(periods, level)
    published, withheld = {}, dict.fromkeys(names, TOO_FEW if epsilon == "off" else TOO_NOISY)
    if pooled is not None:
        widths = 2 * 1.96 * pooled.se[:, 1:].mean(axis=1)
        for name, mean, width in zip(pooled.names, pooled.mean, widths, strict=True):
            if name in withheld and width <= MAX_WIDTH * mean:  # a group of past periods may have vanished
                del withheld[name]
                own = regret[name]
                published[name] = [round(own.regret, _DIGITS), [round(end, _DIGITS) for end in own.interval]]
    return {"regret": published, "withheld": withheld}


def exact(mean: Normal) -> list[Any]:
    """[value, [low, high]], of numbers that need no privacy."""
    return [mean.value, list(mean.interval)]
