"""Past periods at every level: how each group did, pooled over periods, and what it could have had."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.models import Level
from fairstream.models.levels import ALONE
from fairstream.text import signed_percent

DECAY: Final = 0.7  # weight of a period relative to the next one
SIGNIFICANCE: Final = 0.05
ONE_SIDED: Final = NormalDist().inv_cdf(1 - SIGNIFICANCE)
_MIN_USERS: Final = 2
Array = np.ndarray[Any, np.dtype[np.float64]]


class GroupReplay(NamedTuple):
    """One group in one period at L levels, `NO_LEVEL` first."""

    n_users: float
    mean: float  # without a level
    change: tuple[float, ...]  # (L,) the mean change of the same users at each level
    variance: tuple[float, ...]  # (L,) the squared standard error of that change
    mean_variance: float  # the squared standard error of `mean`
    strata: tuple[tuple[int, int, float], ...] = ()
    """Stratum of the users' histories (`strata_of`), its users, and their mean without a level."""


class PeriodReplay(NamedTuple):
    """All levels on one period, by group; groups with too few tested users are missing."""

    levels: tuple[Level, ...]
    groups: Mapping[str, GroupReplay]

    @classmethod
    def of(
        cls,
        levels: Sequence[Level],
        values: Array,
        codes: Codes,
        names: Sequence[str],
        min_users: int,
        strata: Codes | None = None,
    ) -> PeriodReplay:
        """From the users' values (U, L) at each level, the codes of their groups, and their strata.

        >>> levels = (Level(), Level("F", 2.0))
        >>> replay = PeriodReplay.of(levels, np.array([[0.2, 0.4], [0.4, 0.4]]), np.array([0, 0]), ["F"], 2)
        >>> replay.groups["F"].change
        (0.0, 0.1)
        """
        groups = {}
        for code, name in enumerate(names):
            is_own = codes == code
            own = values[is_own]
            if len(own) >= max(min_users, _MIN_USERS):
                change = own - own[:, :1]
                n, variance = len(own), change.var(axis=0, ddof=1) / len(own)
                means = tuple(float(value) for value in change.mean(axis=0).round(12))
                of_mean = float(own[:, 0].var(ddof=1) / n)
                cells = () if strata is None else _by_stratum(own[:, 0], strata[is_own])
                groups[name] = GroupReplay(n, float(own[:, 0].mean()), means, tuple(variance.tolist()), of_mean, cells)
        return cls(tuple(levels), groups)

    def to_json(self) -> dict[str, Any]:
        groups: dict[str, Any] = {name: group._asdict() for name, group in self.groups.items()}
        for group in groups.values():
            group |= {name: list(group[name]) for name in ("change", "variance")}
            group["strata"] = [list(cell) for cell in group["strata"]]
        return {"levels": [list(level) for level in self.levels], "groups": groups}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> PeriodReplay:
        groups = {}
        for name, group in stored["groups"].items():
            strata = tuple((stratum, n, mean) for stratum, n, mean in group["strata"])
            groups[name] = GroupReplay(**{**group, "strata": strata})
        return cls(tuple(Level(*level) for level in stored["levels"]), groups)


def _by_stratum(values: Array, strata: Codes) -> tuple[tuple[int, int, float], ...]:
    present, n = np.unique(strata, return_counts=True)
    return tuple((int(s), int(m), float(values[strata == s].mean())) for s, m in zip(present, n, strict=True))


ReplayGroups = Callable[[Rows, Array, Codes, tuple[str, ...], tuple[Level, ...]], PeriodReplay | None]
"""From the users' rows, their values (U, L), the codes and names of their groups, and the levels; None: no replay."""


@dataclass(frozen=True)
class PooledReplay:
    """The levels on all pooled periods: (G, L) arrays, groups in the order of `names`."""

    levels: tuple[Level, ...]
    names: tuple[str, ...]
    n_periods: int
    n_users: Array  # (G,) tested users of a period, on average
    mean: Array  # (G,) without a level
    change: Array  # (G, L)
    se: Array  # (G, L) the standard error of `change`
    mean_se: Array  # (G,)

    @classmethod
    def of(cls, periods: Sequence[PeriodReplay]) -> PooledReplay | None:
        """Pool periods, the latest last; None without two groups in the latest."""
        if not periods or len(periods[-1].groups) < 2:
            return None
        levels, names = periods[-1].levels, tuple(periods[-1].groups)
        rows = []
        for name in names:
            weights, columns = [], []
            for age, period in enumerate(reversed(periods)):
                if (own := period.groups.get(name)) is not None:
                    at = [period.levels.index(level) if level in period.levels else 0 for level in levels]
                    change, variance = (np.array(part)[at] for part in (own.change, own.variance))
                    weights.append(DECAY**age * own.n_users)
                    columns.append((own.n_users, own.mean, change, variance, own.mean_variance))
            share = np.array(weights) / sum(weights)
            n, mean, change, variance, of_mean = (np.array(column) for column in zip(*columns, strict=True))
            se = np.sqrt(share**2 @ variance)
            rows.append((n.mean(), share @ mean, share @ change, se, math.sqrt(float(share**2 @ of_mean))))
        return cls(levels, names, len(periods), *(np.array(column) for column in zip(*rows, strict=True)))

    @property
    def value(self) -> Array:
        """(G, L) each group's mean at each level."""
        return self.mean[:, None] + self.change

    @property
    def everyone(self) -> Array:
        """(L,) the mean over the users of all groups."""
        return self.n_users @ self.value / self.n_users.sum()

    @property
    def everyone_se(self) -> Array:
        """(L,) the standard error of the change of that mean."""
        share = self.n_users / self.n_users.sum()
        return np.sqrt(share**2 @ self.se**2)

    @property
    def gaps(self) -> Array:
        """(G, L) how far each group is behind the users of all others."""
        n = self.n_users[:, None]
        rest = (n * self.value).sum(axis=0) - n * self.value
        return rest / (n.sum() - n) - self.value

    @property
    def gap_se(self) -> Array:
        """(G,) the standard error of each gap without a level."""
        share = self.n_users[None] * (1 - np.eye(len(self.names)))
        share = share / share.sum(axis=1, keepdims=True)
        return np.sqrt(self.mean_se**2 + share**2 @ self.mean_se**2)

    def regret(self) -> Array:
        """(G, L) the share of its highest mean that each group does not get.

        A change counts only as far as it exceeds its standard error: t → max(0, 1 − 1 / t²) · change. So noise has no
        best level.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.se > 0, self.change / self.se, np.where(self.change == 0, 0.0, np.inf))
            change = np.where(np.abs(t) > 1, 1 - 1 / t**2, 0.0) * self.change
        value = self.mean[:, None] + change
        best = np.maximum(value.max(axis=1, keepdims=True), 1e-12)
        return np.asarray(1 - value / best)

    def raises_its_group(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(L,) whether a level raises its group by more than chance.

        A first test asks whether raising the group helps it at all, by the mean change over the weights that were tried
        (their changes go together, so the mean of their standard errors is that of the mean). It is one-sided at 5 %,
        divided by the number of groups. If it passes, each level is tested at 5 %.
        """
        is_proven = np.zeros(len(self.levels), np.bool_)
        z = NormalDist().inv_cdf(1 - SIGNIFICANCE / len(self.names))
        for g, name in enumerate(self.names):
            own = np.array([level.group == name for level in self.levels])
            tried = own & np.array([level.weight < ALONE for level in self.levels])
            change, se = self.change[g], self.se[g]
            if tried.any() and change[tried].mean() > z * se[tried].mean():
                is_proven |= own & (change > ONE_SIDED * se)
        return is_proven

    def sentence_on(self, at: int) -> str:
        """What a level changes for the group that it raises, for the one that loses most, and for everyone."""
        base = np.maximum(self.mean, 1e-12)
        share, margin = self.change[:, at] / base, 1.96 * self.se[:, at] / base
        # A level can raise a group with too few tested users to be among `names`.
        shown = [g for g, name in enumerate(self.names) if name == self.levels[at].group]
        parts = [
            f"{signed_percent(float(share[g]))} for {self.names[g]} "
            f"({signed_percent(float(share[g] - margin[g]))} to {signed_percent(float(share[g] + margin[g]))})"
            for g in dict.fromkeys((*shown, int(np.argmin(share))))
        ]
        worst = ", at worst " if len(self.names) > 2 else ", "
        overall = float(self.everyone[at] / max(self.everyone[0], 1e-12)) - 1
        return f"{worst.join(parts)}, {signed_percent(overall)} overall"


class PastRegret(NamedTuple):
    """What a group got on past periods, and could have had."""

    served: float
    attainable: float
    regret: float
    interval: tuple[float, float]  # of `regret`, 95 %


def past_regret(periods: Sequence[PeriodReplay], served: Level) -> dict[str, PastRegret]:
    """Group → its regret at a level over past periods, the latest last.

    For each period the best level is chosen by the other periods, so its value is free of the winner's curse. A single
    period chooses by itself, and only what exceeds its standard error counts.
    """
    results = {}
    for name in dict.fromkeys(name for period in periods for name in period.groups):
        own = [(DECAY**age * p.groups[name].n_users, p) for age, p in enumerate(reversed(periods)) if name in p.groups]
        shares = np.array([weight for weight, _ in own]) / sum(weight for weight, _ in own)
        value, gain, variance = 0.0, 0.0, 0.0
        for at, (share, (_, period)) in enumerate(zip(shares, own, strict=True)):
            group, others = period.groups[name], [p for i, (_, p) in enumerate(own) if i != at]
            best = _best_level(others[::-1] or [period], name, period.levels, is_shrunk=not others)
            now = period.levels.index(served) if served in period.levels else 0
            value += share * (group.mean + group.change[now])
            gain += share * (group.change[best] - group.change[now])
            variance += share**2 * (group.variance[best] + group.variance[now]) * (best != now)
        value, gain = float(value), float(gain)
        attainable, se = value + max(0.0, gain), math.sqrt(variance)
        regret, low, high = (max(0.0, float(gain + side * 1.96 * se)) / max(attainable, 1e-12) for side in (0, -1, 1))
        results[name] = PastRegret(float(value), float(attainable), regret, (low, high))
    return results


def _best_level(periods: Sequence[PeriodReplay], name: str, levels: Sequence[Level], *, is_shrunk: bool) -> int:
    """The place in `levels` with the highest mean of a group over some periods."""
    shares = np.array([p.groups[name].n_users for p in periods])
    change, variance = np.zeros(len(levels)), np.zeros(len(levels))
    for share, period in zip(shares / shares.sum(), periods, strict=True):
        at = [period.levels.index(level) if level in period.levels else 0 for level in levels]
        group = period.groups[name]
        change += share * np.array(group.change)[at]
        variance += share**2 * np.array(group.variance)[at]
    return int(np.argmax(change - np.sqrt(variance) if is_shrunk else change))
