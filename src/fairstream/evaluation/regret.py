"""Regret: the share of its attainable quality that a group does not get.

V_g(m) is the mean value of group g's tested users under the lists m: as served, or at a level (`models.levels`).

    attainable_g = V_g(best level for g),    regret_g = 1 − V_g(served) / attainable_g

The level that looks best is best partly by chance (the winner's curse). So users are split into folds: the level is
chosen on the users outside a fold, its value is taken on the users inside, and the folds are averaged. A gap splits:

    gap = V_A − V_B = inherent + avoidable,    inherent = attainable_A − attainable_B.

The inherent part remains when each group gets its best attainable lists; only the avoidable part can be closed by
raising somebody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fairstream.data import Rows
from fairstream.data.groups import Codes
from fairstream.evaluation.by_group import Estimate, GroupScores, student_t
from fairstream.evaluation.resampling import Array

if TYPE_CHECKING:
    from fairstream.evaluation.user_results import UserResults
    from fairstream.models import Level

N_FOLDS: Final = 5
_DRAWS_AT_ONCE: Final = 64
MAX_WIDTH: Final = 0.4
"""A regret whose interval is wider than this cannot be determined: there are too few users."""
LEVEL_DIGITS: Final = 6
"""Values at levels are kept to so many digits. Served values are rounded alike, or rounding would look like a gain."""
UNDETERMINED: Final = "cannot be determined"


@dataclass(frozen=True, eq=False)
class LevelPanel:
    """The values of users as served and at each level, averaged over periods as in `GroupPanel`."""

    levels: tuple[Level | str, ...]  # a string names another alternative, such as the lists of another system
    values: Array  # (U, 1 + L) each user's share in the mean of the group, as served and at each level
    weights: Array  # (U,) what these shares are divided by: Σ_u∈g weights = 1
    codes: Codes  # (U,)
    names: tuple[str, ...]

    @classmethod
    def of(cls, tested: Sequence[UserResults], metric: Any, names: Sequence[str], min_size: int) -> LevelPanel | None:
        """Stack the tests of several periods; None where fewer than two groups are compared.

        If one of the tests has no levels, the panel has none.
        """
        if not tested:
            return None
        has_levels = all(part.levels for part in tested)
        at_levels = [
            (part.levels, np.asarray(part.level_values)) if has_levels else ((), np.empty((len(part.users), 0)))
            for part in tested
        ]
        return cls.of_alternatives(tested, at_levels, metric, names, min_size)

    @classmethod
    def of_alternatives(
        cls,
        tested: Sequence[UserResults],
        alternatives: Sequence[tuple[Sequence[Level | str], Array]],
        metric: Any,
        names: Sequence[str],
        min_size: int,
    ) -> LevelPanel | None:
        """Stack tests with the names and the values (U, L) of the alternatives to each; None as for `of`."""
        levels = max((tuple(own) for own, _ in alternatives), key=len)
        users = np.unique(np.concatenate([part.users for part in tested]))
        values, weights = np.zeros((len(users), 1 + len(levels))), np.zeros(len(users))
        codes = np.full(len(users), -1, np.int16)
        sizes = np.array([np.bincount(part.codes[part.codes >= 0], minlength=len(names)) for part in tested])  # (P, G)
        is_compared = (sizes >= max(1, min_size)) & ((sizes >= max(1, min_size)).sum(axis=1) > 1)[:, None]
        n_periods = is_compared.sum(axis=0)
        for p, (part, (own_levels, own_values)) in enumerate(zip(tested, alternatives, strict=True)):
            at, known = np.searchsorted(users, part.users), part.codes >= 0
            codes[at] = part.codes
            share = np.zeros(len(at))
            share[known] = (is_compared[p] / np.maximum(1, sizes[p] * n_periods))[part.codes[known]]
            values[at, 0] += share * part.values_of(metric).round(LEVEL_DIGITS)
            if levels:
                own = {level: column for column, level in enumerate(own_levels)}
                values[at, 1:] += share[:, None] * own_values[:, [own.get(level, 0) for level in levels]]
            weights[at] += share
        panel = cls(levels, values, weights, codes, tuple(names))
        return panel if len(panel.compared) > 1 else None

    @cached_property
    def compared(self) -> list[int]:
        """The codes of the groups with enough users."""
        return [code for code in range(len(self.names)) if (self.weights[self.codes == code] > 0).any()]

    @cached_property
    def _rows(self) -> dict[int, Rows]:
        return {code: np.flatnonzero((self.codes == code) & (self.weights > 0)) for code in self.compared}

    def means(self) -> dict[str, Array]:
        """Group → (1 + L,) its mean as served and at each level."""
        return {self.names[code]: self.values[rows].sum(axis=0) for code, rows in self._rows.items()}

    def sizes(self) -> dict[str, int]:
        """Group → its tested users."""
        return {self.names[code]: len(rows) for code, rows in self._rows.items()}

    def change(self, name: str, level: Level | str | None, since: Level | str | None = None) -> Estimate:
        """The mean change of a group's users at a level, compared with another (None: as served), paired by user."""
        rows = self._rows[self.names.index(name)]
        to, of = (0 if each is None else 1 + self.levels.index(each) for each in (level, since))
        shares, weights = self.values[rows, to] - self.values[rows, of], self.weights[rows]
        value, n = float(shares.sum()), len(rows)
        if n < 2:
            return Estimate(value)
        half = float(student_t(n - 1)) * float(np.sqrt(n / (n - 1) * ((shares - weights * value) ** 2).sum()))
        return Estimate(value, (value - half, value + half))

    def best_levels(self) -> dict[str, Level | str | None]:
        """Group → the level with the highest mean; None: the lists as served."""
        best = {name: int(np.argmax(means)) for name, means in self.means().items()}
        return {name: self.levels[at - 1] if at else None for name, at in best.items()}

    def attainable(
        self, rng: np.random.Generator, n_resamples: int, n_served: int = 1
    ) -> dict[str, tuple[Array, Array]]:
        """Group → (D,) attainable and (D, n_served) as served: the estimate, then that of each sample of users.

        Users are drawn by the bootstrap. The first `n_served` columns are the lists as served, by one system or more.
        """
        results = {}
        for code, rows in self._rows.items():
            values, weights = self.values[rows], self.weights[rows]
            fold = rng.permutation(len(rows)) % N_FOLDS
            parts = [_cross_fit(values, weights, fold, np.ones((1, len(rows))), n_served)]
            for start in range(0, n_resamples, _DRAWS_AT_ONCE):
                n = min(_DRAWS_AT_ONCE, n_resamples - start)
                draws = rng.poisson(1.0, (n, len(rows))).astype(np.float64)
                parts.append(_cross_fit(values, weights, fold, draws, n_served))
            attainable, served = (np.concatenate(column) for column in zip(*parts, strict=True))
            results[self.names[code]] = attainable, served
        return results


def _cross_fit(values: Array, weights: Array, fold: Rows, draws: Array, n_served: int) -> tuple[Array, Array]:
    """(D,) the attainable and (D, n_served) the served means of a group in D samples.

    `draws` (D, n) says how often each user is in a sample.
    """
    sums = np.stack([draws[:, fold == f] @ values[fold == f] for f in range(N_FOLDS)], axis=1)  # (D, F, 1 + L)
    sizes = np.stack([draws[:, fold == f] @ weights[fold == f] for f in range(N_FOLDS)], axis=1)  # (D, F)
    others = sums.sum(axis=1, keepdims=True) - sums
    chosen = np.argmax(others, axis=2)[..., None]  # the first of equals: the lists as served
    total = np.maximum(sizes.sum(axis=1), 1e-12)
    attainable = np.take_along_axis(sums, chosen, axis=2)[..., 0].sum(axis=1) / total
    return attainable, sums[..., :n_served].sum(axis=1) / total[:, None]


def with_regret(
    score: GroupScores, panel: LevelPanel, rng: np.random.Generator | None, n_resamples: int
) -> GroupScores:
    """Return the scores with `attainable`, `regret`, and the split of the gap."""
    rng = np.random.default_rng(0) if rng is None else rng
    both = panel.attainable(rng, n_resamples)
    estimates = {name: (attainable, served[:, 0]) for name, (attainable, served) in both.items()}
    regret = {name: _at_least_zero(_share_missing(*each)) for name, each in estimates.items()}
    attainable_now = {name: max(float(values[0][0]), float(values[1][0])) for name, values in estimates.items()}
    about: dict[str, Any] = {"attainable": attainable_now, "regret": regret}
    about["best_level"] = {name: str(level or "as served") for name, level in panel.best_levels().items()}
    if (split := _split(score, estimates, panel)) is not None:
        about |= split
    return replace(score, **about)


@dataclass(frozen=True, eq=False)
class SystemRegret:
    """The regret of C systems: each group's attainable value is the best of all of them, at all of their levels."""

    names: tuple[str, ...]
    """The compared groups."""
    attainable: tuple[float, ...]
    """(G,) the best mean of each group."""
    best: tuple[tuple[int, Level | str | None], ...]
    """(G,) the number of the system that reaches it, and its level; None: as served."""
    draws: Array
    """(D, G, C) the regrets: the estimate, then that of each bootstrap sample, the same for all systems."""

    @classmethod
    def of(cls, panels: Sequence[LevelPanel], n_resamples: int) -> SystemRegret:
        """Compare systems that were tested on the same users; without levels a system has its served lists only."""
        first = panels[0]
        columns = [panel.values[:, :1] for panel in panels] + [panel.values[:, 1:] for panel in panels]
        levels: list[tuple[int, Level | str | None]] = [(c, None) for c in range(len(panels))]
        levels += [(c, level) for c, panel in enumerate(panels) for level in panel.levels]
        joint = replace(first, levels=(), values=np.concatenate(columns, axis=1))
        means, estimates = joint.means(), joint.attainable(np.random.default_rng(0), n_resamples, len(panels))
        return cls(
            tuple(estimates),
            tuple(float(max(attainable[0], served[0].max())) for attainable, served in estimates.values()),
            tuple(levels[int(np.argmax(means[name]))] for name in estimates),
            np.stack(
                [_share_missing(attainable[:, None], served) for attainable, served in estimates.values()], axis=1
            ),
        )

    def by_group(self, system: int) -> dict[str, Estimate]:
        """Each group's regret with one system."""
        return {name: _at_least_zero(self.draws[:, g, system]) for g, name in enumerate(self.names)}

    def largest(self, system: int, minus: int | None = None) -> Estimate:
        """The largest regret of any group, or its difference to that with another system."""
        if minus is None:
            return _at_least_zero(self._largest(system))
        draws = self._largest(system) - self._largest(minus)
        return Estimate.of_draws(draws[0], draws[1:])

    def worst(self, system: int) -> str:
        """The group with the largest regret."""
        return self.names[int(np.argmax(self.draws[0, :, system]))]

    def _largest(self, system: int) -> Array:
        # The group is fixed: in every draw the largest of several noisy regrets would be too large.
        return np.asarray(self.draws[:, self.names.index(self.worst(system)), system])


def _share_missing(attainable: Array, served: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(attainable > 0, 1 - served / attainable, 0.0)


def _at_least_zero(draws: Array) -> Estimate:
    if len(draws) == 1:
        return Estimate(max(0.0, float(draws[0])))
    value, (low, high) = float(draws[0]), _interval(draws)
    return Estimate(max(0.0, value), (max(0.0, low), max(0.0, high)))


def _interval(draws: Array) -> tuple[float, float]:
    """The normal interval around the first number, by the spread of the others.

    In benchmarks/regret.py it covers 95 to 100 % of the truths; percentiles cover less, because a sample prefers its
    own best level.
    """
    value, margin = float(draws[0]), 1.96 * float(np.std(draws[1:]))
    return value - margin, value + margin


def _split(
    score: GroupScores, estimates: Mapping[str, tuple[Array, Array]], panel: LevelPanel
) -> dict[str, Any] | None:
    """The inherent and the avoidable part of PD, or of the gap of the group furthest behind."""
    first, sign = (score.advantaged, 1.0) if score.disparity is not None else (score.furthest_behind_group, -1.0)
    gap = score.disparity if score.disparity is not None else score.furthest_behind
    if first is None or first not in estimates or gap is None or len(estimates) < 2:
        return None
    n_users = panel.sizes()
    rest = {name: n_users[name] for name in estimates if name != first}
    # What each side could gain, in each sample; the parts of a gap are differences of these.
    gains = {name: np.maximum(0.0, attainable - served) for name, (attainable, served) in estimates.items()}
    of_rest = sum(n * gains[name] for name, n in rest.items()) / sum(rest.values())
    avoidable = sign * (of_rest - gains[first])
    value = float(avoidable[0])
    interval = None if len(avoidable) == 1 else _interval(avoidable)
    return {"inherent_gap": gap.value - value, "avoidable_gap": value, "avoidable_gap_interval": interval}
