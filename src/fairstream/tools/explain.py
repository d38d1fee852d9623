"""Why a metric changed from one period to the next: parts that add up to the change.

The test before is that of W_{t−1} on D_t, the test after that of W_t on D_{t+1}. Between them stands the unchanged
model: W_{t−1} on D_{t+1}, which knows D_t and has not learned it.

    after − before = (after − unchanged) + (unchanged − before)

The first difference is the effect of the update, on the same users. The second is between two tests of one model. In
each of them the mean over users is

    m = Σ_c s_c Σ_l d_cl (1 − n_cl) q_cl

over newcomers and known users c and the lengths of history l: s_c is the share of newcomers or known users, d_cl the
distribution of their history lengths, n_cl the loss to items without any event so far, and q_cl the value for items
that could be recommended. Each factor's part is its Shapley value: the effect of replacing its old value by the new
one, averaged over all orders in which the four can be replaced. So no order is preferred, and the parts add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from fairstream.evaluation.by_group import Estimate
from fairstream.evaluation.resampling import Array, bootstrap_sums, ratio_of
from fairstream.tools.breakdown import KNOWN, N_LENGTHS, N_STRATA, REACHABLE, VALUES, WEIGHT, Breakdown

FACTORS: Final = ("new_people", "histories", "new_items", "drift")
"""The parts between two tests of one model, in the order of the factors s, d, n, q."""
LEARNING, LEVER = "learning", "lever"
"""The parts of the update: without the fairness lever, and the effect of the lever."""
_DRAWS_AT_ONCE = 64


@dataclass(frozen=True)
class Change:
    """The change of one number, and its parts."""

    before: float
    after: float
    change: Estimate
    parts: Mapping[str, Estimate]
    """By name: `FACTORS`, `LEARNING` and, where a lever was in force and measured, `LEVER`; their sum is the change."""
    lever_worth: Estimate | None = None
    """The effect of the lever so far: W_t minus the same update without it."""


@dataclass(frozen=True)
class Mix:
    """The tested users and items, before and after."""

    n_users: tuple[int, int]
    newcomers: tuple[float | None, float | None]
    """The share of users without an event before the period; None: too few to report."""
    new_items: tuple[float, float]
    """The share of tested items without any event so far."""


@dataclass(frozen=True)
class Explanation:
    """The change of one metric: for all users, for each group, and in each group's gap to the rest."""

    everyone: Change
    groups: Mapping[str, Change]
    """Without groups that have too few tested users in either test."""
    gaps: Mapping[str, Change]
    """Each compared group minus the users of all other compared groups; the first is PD."""
    mixes: Mapping[str, Mix]
    """By group, and under "" for all users."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return _EXPLANATION.dump_python(self, mode="json", exclude_defaults=True)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Explanation:
        """Return what `to_dict` wrote."""
        return _EXPLANATION.validate_python(stored)


_EXPLANATION = TypeAdapter(Explanation)


@dataclass(frozen=True)
class Explained:
    """The explanations of a run or of a workspace, period by period."""

    name: str  # the name of the run or of the workspace
    group: str  # the attribute that makes the groups
    metric: str
    task: str  # event, moment or next
    t: int  # the period to explain
    tested: tuple[str, str]  # what was tested on what, before and after
    periods: Mapping[int, Explanation]  # all explained periods, in order
    notes: tuple[str, ...] = ()  # one sentence each

    @property
    def shown(self) -> Explanation:
        """The explanation of the period `t`."""
        return self.periods[self.t]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **{name: getattr(self, name) for name in ("name", "group", "metric", "task", "t")},
            **dict(zip(("before", "after"), self.tested, strict=True)),
            "notes": list(self.notes),
            **self.shown.to_dict(),
            "periods": {str(t): explanation.to_dict() for t, explanation in self.periods.items()},
        }


@dataclass(frozen=True, eq=False)
class ComparedTests:
    """The breakdowns of the tests that explain a change."""

    before: Breakdown  # W_{t−1} on D_t
    kept: Breakdown  # W_{t−1}, unchanged, on D_{t+1}
    after: Breakdown  # W_t on D_{t+1}
    kept_without: Breakdown | None = None
    """The same as `kept`, without the lever's immediate effect (weights in closed form, reranking) …"""
    after_without: Breakdown | None = None
    """… and the same update as `after` from the same W_{t−1}, without the lever; both are None without a lever."""


def explain(
    tests: ComparedTests,
    names: Sequence[str],
    min_size: int,
    rng: np.random.Generator | None = None,
    n_resamples: int = 0,
) -> dict[str, Explanation]:
    """Decompose the change of each metric that has a value for each user.

    A group is compared if it has `min_size` tested users, before and after. Each of the `n_resamples`
    bootstrap samples draws a user with both periods.
    """
    panel = _Panel(tests, len(names), min_size)
    observed = panel.observed()
    drawn = None if rng is None or not n_resamples else panel.drawn(rng, n_resamples)
    mixes = panel.mixes(names)
    explanations = {}
    for m, metric in enumerate(tests.before.metrics):

        def change(subject: int, m: int = m) -> Change:
            return _change(observed[subject, m], None if drawn is None else drawn[:, subject, m], panel.has_lever)

        groups = {names[code]: change(1 + at) for at, code in enumerate(panel.judged)}
        gaps = {names[code]: change(1 + len(panel.judged) + at) for at, code in enumerate(panel.compared)}
        explanations[metric] = Explanation(change(0), groups, gaps, mixes)
    return explanations


def factor_parts(before: Array, after: Array) -> Array:
    """(…, M, 4) the Shapley values of the factors, from the sums (…, strata, 3 + 2 M) of two tests of one model."""
    both = [_own_factors(sums) for sums in (before, after)]
    # A factor of an empty stratum comes from the other test, so that only the stratum's share changes.
    old, new = (
        [np.nan_to_num(np.where(np.isnan(own), other, own)) for own, other in zip(*tests, strict=True)]
        for tests in (both, both[::-1])
    )
    n = len(FACTORS)
    values = {
        chosen: np.prod([(new if f in chosen else old)[f] for f in range(n)], axis=0).sum(axis=-2)
        for size in range(n + 1)
        for chosen in combinations(range(n), size)
    }
    parts = []
    for f in range(n):
        part = np.zeros_like(values[()])
        for chosen, value in values.items():
            if f not in chosen:
                weight = factorial(len(chosen)) * factorial(n - len(chosen) - 1) / factorial(n)
                part = part + weight * (values[tuple(sorted((*chosen, f)))] - value)
        parts.append(part)
    return np.stack(parts, axis=-1)


def mean_of_sums(sums: Array) -> Array:
    """(…, M) the mean over users, from sums (…, strata, 3 + 2 M)."""
    n_metrics = (sums.shape[-1] - VALUES) // 2
    total = sums[..., VALUES : VALUES + n_metrics].sum(axis=-2)
    return ratio_of(total, sums[..., WEIGHT].sum(axis=-1)[..., None])


def _own_factors(sums: Array) -> list[Array]:
    """The four factors of a test (…, strata, M); NaN in an empty stratum."""
    n_metrics = (sums.shape[-1] - VALUES) // 2
    weight, reachable = sums[..., WEIGHT], sums[..., REACHABLE, None]
    values, of_reachable = np.split(sums[..., VALUES:], [n_metrics], axis=-1)
    classes = np.stack([weight[..., :N_LENGTHS].sum(axis=-1), weight[..., N_LENGTHS:].sum(axis=-1)], axis=-1)
    by_stratum = np.repeat(classes, N_LENGTHS, axis=-1)
    share = ratio_of(by_stratum, weight.sum(axis=-1, keepdims=True))
    spread = ratio_of(weight, by_stratum)
    mean, quality = ratio_of(values, weight[..., None]), ratio_of(of_reachable, reachable)
    # A metric that reads no positives has a value also where nothing could be recommended: no loss to new items.
    is_apart = (mean != 0) & (np.nan_to_num(quality) == 0)
    quality = np.where(is_apart, mean, quality)
    # 1 − n_cl: the share of the quality that new items leave; without any quality, that of reachable lists.
    share_left = ratio_of(reachable, weight[..., None])
    left = np.where(quality != 0, mean / np.where(quality != 0, quality, 1.0), share_left)
    left = np.where(np.isnan(quality), share_left, left)
    return [*np.broadcast_arrays(share[..., None], spread[..., None], left, quality)]


class _Panel:
    """All tests in one table: a row for each user of either period, a column for each sum."""

    def __init__(self, tests: ComparedTests, n_groups: int, min_size: int) -> None:
        before, after = tests.before, tests.after
        self.n_metrics, self.has_lever = len(before.metrics), tests.after_without is not None
        users = np.union1d(before.users, after.users)
        codes = np.full(len(users), -1, dtype=np.int64)
        later = [tests.after, tests.after_without, tests.kept_without]
        self._shape = N_STRATA, before.entries.shape[1]
        width = self._shape[0] * self._shape[1]
        columns = np.zeros((len(users), 2 * width + len(later) * self.n_metrics))
        for at, test in enumerate((before, tests.kept)):
            rows = np.searchsorted(users, test.users)
            codes[rows] = test.codes
            columns[rows, at * width : (at + 1) * width] = test.cells().reshape(len(rows), width)
        for at, values in enumerate(later):
            if values is not None:
                begin = 2 * width + at * self.n_metrics
                rows = np.searchsorted(users, values.users)
                columns[rows, begin : begin + self.n_metrics] = values.values
        self._columns = columns
        self._strata = [np.flatnonzero(codes == code) for code in (*range(n_groups), -1)]
        sizes = np.array([np.bincount(test.codes[test.codes >= 0], minlength=n_groups) for test in (before, after)])
        self.judged = np.flatnonzero((sizes >= max(1, min_size)).all(axis=0)).tolist()
        self.compared = self.judged if len(self.judged) > 1 else []
        self._min_size = min_size
        self._sums = np.stack([columns[rows].sum(axis=0) for rows in self._strata])

    def observed(self) -> Array:
        """(subjects, M, numbers), see `_numbers`."""
        return self._numbers(self._sums)

    def drawn(self, rng: np.random.Generator, n: int) -> Array:
        """(n, subjects, M, numbers) of bootstrap samples of the users of each group."""
        sizes = [min(_DRAWS_AT_ONCE, n - start) for start in range(0, n, _DRAWS_AT_ONCE)]
        return np.concatenate([self._numbers(bootstrap_sums(self._columns, self._strata, rng, size)) for size in sizes])

    def _numbers(self, sums: Array) -> Array:
        """(…, groups and none, columns) → (…, subjects, M, numbers).

        Subjects are everyone, the judged groups, and the gaps of the compared ones. Numbers are before,
        after, the change, the parts (the lever's last), and the lever's worth.
        """
        judged, compared = sums[..., self.judged, :], sums[..., self.compared, :]
        rest = compared.sum(axis=-2, keepdims=True) - compared
        sides = np.concatenate([sums.sum(axis=-2, keepdims=True), judged, rest], axis=-2)
        numbers = self._of(sides)
        first = 1 + len(self.judged)
        gaps = numbers[..., 1 : 1 + len(self.compared), :, :] - numbers[..., first:, :, :]
        return np.concatenate([numbers[..., :first, :, :], gaps], axis=-3)

    def _tables(self, sums: Array) -> list[Array]:
        """(…, strata, 3 + 2 M) of the two tests of W_{t−1}."""
        both = sums[..., : 2 * self._shape[0] * self._shape[1]].reshape(*sums.shape[:-1], 2, *self._shape)
        return [both[..., 0, :, :], both[..., 1, :, :]]

    def _of(self, sums: Array) -> Array:
        tables, width = self._tables(sums), self._shape[0] * self._shape[1]
        before, kept = (mean_of_sums(table) for table in tables)
        n_users = tables[1][..., WEIGHT].sum(axis=-1)[..., None]
        after, without, kept_without = (
            ratio_of(sums[..., 2 * width + at * self.n_metrics :][..., : self.n_metrics], n_users) for at in range(3)
        )
        worth = after - without
        lever = worth - (kept - kept_without) if self.has_lever else np.zeros_like(after)
        parts = [*np.moveaxis(factor_parts(*tables), -1, 0), after - kept - lever, lever]
        return np.stack([before, after, after - before, *parts, worth], axis=-1)

    def mixes(self, names: Sequence[str]) -> dict[str, Mix]:
        """Return the mix of all users and of each judged group."""
        sums = {"": self._sums.sum(axis=0), **{names[code]: self._sums[code] for code in self.judged}}
        return {name: self._mix(self._tables(part)) for name, part in sums.items()}

    def _mix(self, tables: list[Array]) -> Mix:
        sides = []
        for table in tables:
            # A user's weights add up to 1, and a newcomer has no weight among the known users.
            n_known, n_new = (float(part.sum()) for part in np.split(table[:, WEIGHT], 2))
            n = n_known + n_new
            # Newcomers, or known users, who are too few to report would otherwise follow from the share.
            is_small = any(0 < round(size) < self._min_size for size in (n_new, n_known))
            total = max(n, 1e-12)
            sides.append((round(n), None if is_small else n_new / total, 1.0 - float(table[:, KNOWN].sum()) / total))
        return Mix(*zip(*sides, strict=True))


def _change(observed: Array, drawn: Array | None, has_lever: bool) -> Change:
    def estimate(at: int) -> Estimate:
        value = float(observed[at])
        if drawn is None or np.isnan(value) or not np.isfinite(drawn[:, at]).any():
            return Estimate(value)
        return Estimate.of_draws(value, drawn[:, at])

    names = (*FACTORS, LEARNING, *((LEVER,) if has_lever else ()))
    parts = {name: estimate(3 + at) for at, name in enumerate(names)}
    return Change(
        float(observed[0]), float(observed[1]), estimate(2), parts, estimate(len(observed) - 1) if has_lever else None
    )
