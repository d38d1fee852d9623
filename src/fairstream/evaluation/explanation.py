"""Why a metric moved from one period to the next: parts that add up to the change.

The test before is that of W_{t−1} on D_t, the test after that of W_t on D_{t+1}. Between them stands the model left
as it was: W_{t−1} on D_{t+1}, knowing of D_t and not having learned it.

    after − before = (after − left as it was) + (left as it was − before)

The first difference is what the update did, on the same users. The second is between two tests of one model. In each
of them the mean over users is

    m = Σ_c s_c Σ_l d_cl (1 − n_cl) q_cl

over newcomers and known users c and the lengths of history l: s_c is the share of newcomers or known users, d_cl how
their histories are spread, n_cl what is lost to items that nobody had had by then, and q_cl the value for what could be
recommended. Each factor's part is its Shapley value: what replacing its old value by the new one changes, averaged
over all orders in which the four can be replaced. So no order is preferred, and the parts add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Any, Final

import numpy as np

from fairstream.evaluation.breakdown import KNOWN, N_LENGTHS, N_STRATA, REACHABLE, VALUES, WEIGHT, Breakdown
from fairstream.evaluation.by_group import Estimate
from fairstream.evaluation.paired import Interval
from fairstream.evaluation.resampling import Array, Mask, bootstrap_sums, ratio_of

FACTORS: Final = ("new_people", "histories", "new_items", "drift")
"""The parts between two tests of one model, in the order of the factors s, d, n, q."""
LEARNING, LEVER = "learning", "lever"
"""The parts of the update: without the fairness lever, and what the lever changed."""
_DRAWS_AT_ONCE = 64


@dataclass(frozen=True)
class Change:
    """How one number moved, and why."""

    before: float
    after: float
    change: Estimate
    parts: Mapping[str, Estimate]
    """By name: `FACTORS`, `LEARNING` and, where a lever was in force and measured, `LEVER`; their sum is the change."""
    lever_worth: Estimate | None = None
    """What the lever is worth by now: W_t minus the same update without it."""
    margins: tuple[float, float] | None = None
    """Half of the 95 % intervals of `before` and `after`, where they are known."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        worth = {} if self.lever_worth is None else {"lever_worth": _packed(self.lever_worth)}
        margins = {} if self.margins is None else {"margins": list(self.margins)}
        return {
            "before": self.before,
            "after": self.after,
            "change": _packed(self.change),
            "parts": {name: _packed(part) for name, part in self.parts.items()},
            **worth,
            **margins,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Change:
        """The inverse of `to_dict`."""
        worth, margins = stored.get("lever_worth"), stored.get("margins")
        return cls(
            stored["before"],
            stored["after"],
            _unpacked(stored["change"]),
            {name: _unpacked(part) for name, part in stored["parts"].items()},
            None if worth is None else _unpacked(worth),
            None if margins is None else (margins[0], margins[1]),
        )


@dataclass(frozen=True)
class Mix:
    """Who was tested and on what, before and after."""

    n_users: tuple[int, int]
    newcomers: tuple[float | None, float | None]
    """Share of what was tested that is of users without an event before the period; None: too few to report."""
    new_items: tuple[float, float]
    """Share of what was tested that concerns items that nobody had had by then."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"n_users": list(self.n_users), "newcomers": list(self.newcomers), "new_items": list(self.new_items)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Mix:
        """The inverse of `to_dict`."""
        return cls(tuple(stored["n_users"]), tuple(stored["newcomers"]), tuple(stored["new_items"]))


@dataclass(frozen=True)
class Explanation:
    """What moved in one metric: for everyone, for each group, and in each group's gap to the rest."""

    everyone: Change
    groups: Mapping[str, Change]
    """Groups with too few tested users in either test are not there."""
    gaps: Mapping[str, Change]
    """Each compared group minus the users of all other compared groups; the first is PD."""
    mixes: Mapping[str, Mix]
    """By group, and under "" for everyone."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "everyone": self.everyone.to_dict(),
            "groups": {name: change.to_dict() for name, change in self.groups.items()},
            "gaps": {name: change.to_dict() for name, change in self.gaps.items()},
            "mixes": {name: mix.to_dict() for name, mix in self.mixes.items()},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Explanation:
        """The inverse of `to_dict`."""
        return cls(
            Change.from_dict(stored["everyone"]),
            {name: Change.from_dict(change) for name, change in stored["groups"].items()},
            {name: Change.from_dict(change) for name, change in stored["gaps"].items()},
            {name: Mix.from_dict(mix) for name, mix in stored["mixes"].items()},
        )


@dataclass(frozen=True)
class Explained:
    """The explanations of a run or of a workspace, period by period."""

    name: str
    """Of what."""
    group: str
    """The attribute that makes the groups."""
    metric: str
    task: str
    """event or next."""
    t: int
    """The period whose explanation is asked for."""
    tested: tuple[str, str]
    """What was tested on what, before and after."""
    periods: Mapping[int, Explanation]
    """All that there are, in order."""
    notes: tuple[str, ...] = ()
    """One sentence for each thing that the numbers do not say."""

    @property
    def shown(self) -> Explanation:
        """The explanation that is asked for."""
        return self.periods[self.t]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "group": self.group,
            "metric": self.metric,
            "task": self.task,
            "t": self.t,
            "before": self.tested[0],
            "after": self.tested[1],
            "notes": list(self.notes),
            **self.shown.to_dict(),
            "periods": {str(t): explanation.to_dict() for t, explanation in self.periods.items()},
        }


@dataclass(frozen=True, eq=False)
class ComparedTests:
    """The breakdowns of the tests that a change is explained by."""

    before: Breakdown
    """W_{t−1} on D_t."""
    kept: Breakdown
    """W_{t−1}, left as it was, on D_{t+1}."""
    after: Breakdown
    """W_t on D_{t+1}."""
    kept_without: Breakdown | None = None
    """The same as `kept`, without what the lever does at once (weights in closed form, reranking) …"""
    after_without: Breakdown | None = None
    """… and the same update as `after` from the same W_{t−1}, without the lever; both None where there is no lever."""


def explain(
    tests: ComparedTests,
    names: Sequence[str],
    min_size: int,
    rng: np.random.Generator | None = None,
    n_resamples: int = 0,
) -> dict[str, Explanation]:
    """Decompose the change of each metric.

    Parameters
    ----------
    tests
        The breakdowns.
    names
        The groups' names, in the order of their codes.
    min_size
        The fewest tested users, before and after, with which a group is compared.
    rng, n_resamples
        Draw so many bootstrap samples of users for 95 % intervals, each with both of its periods; 0: no intervals.

    Returns
    -------
    dict
        NAME@K → the explanation, for every metric with a value for each user.

    """
    panel = _Panel(tests, len(names), min_size)
    observed = panel.observed()
    drawn = None if rng is None or not n_resamples else panel.drawn(rng, n_resamples)
    mixes = panel.mixes(names)
    found = {}
    for m, metric in enumerate(tests.before.metrics):

        def change(subject: int, m: int = m) -> Change:
            return _change(observed[subject, m], None if drawn is None else drawn[:, subject, m], panel.has_lever)

        groups = {names[code]: change(1 + at) for at, code in enumerate(panel.judged)}
        gaps = {names[code]: change(1 + len(panel.judged) + at) for at, code in enumerate(panel.compared)}
        found[metric] = Explanation(change(0), groups, gaps, mixes)
    return found


def factor_parts(before: Array, after: Array) -> Array:
    """(…, M, 4) the Shapley values of the factors, from the sums (…, strata, 3 + 2 M) of two tests of one model."""
    (old, new) = _factors(before, after)
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


def _factors(before: Array, after: Array) -> tuple[list[Array], list[Array]]:
    """The four factors of each test (…, strata, M).

    What a test has nobody for is taken from the other test, so that an empty stratum changes by its share alone.
    """
    both = [_own_factors(sums) for sums in (before, after)]
    filled: list[list[Array]] = [[], []]
    for old, new in zip(*both, strict=True):
        filled[0].append(np.nan_to_num(np.where(np.isnan(old), new, old)))
        filled[1].append(np.nan_to_num(np.where(np.isnan(new), old, new)))
    return filled[0], filled[1]


def _own_factors(sums: Array) -> list[Array]:
    n_metrics = (sums.shape[-1] - VALUES) // 2
    weight, reachable = sums[..., WEIGHT], sums[..., REACHABLE, None]
    values, of_reachable = np.split(sums[..., VALUES:], [n_metrics], axis=-1)
    classes = np.stack([weight[..., :N_LENGTHS].sum(axis=-1), weight[..., N_LENGTHS:].sum(axis=-1)], axis=-1)
    by_stratum = np.repeat(classes, N_LENGTHS, axis=-1)
    share = ratio_of(by_stratum, weight.sum(axis=-1, keepdims=True))
    spread = ratio_of(weight, by_stratum)
    mean, quality = ratio_of(values, weight[..., None]), ratio_of(of_reachable, reachable)
    # A metric that sees no positives has values also where nothing could be recommended: they are no loss to new items.
    is_apart = (mean != 0) & (np.nan_to_num(quality) == 0)
    quality = np.where(is_apart, mean, quality)
    kept = np.where(quality != 0, mean / np.where(quality != 0, quality, 1.0), ratio_of(reachable, weight[..., None]))
    kept = np.where(np.isnan(quality), ratio_of(reachable, weight[..., None]), kept)
    return [*np.broadcast_arrays(share[..., None], spread[..., None], kept, quality)]


class _Panel:
    """All tests side by side: a row for each user of either period, a column for each sum."""

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
        self._tests = before, after

    def observed(self) -> Array:
        """(subjects, M, numbers), see `_numbers`."""
        return self._numbers(np.stack([self._columns[rows].sum(axis=0) for rows in self._strata]))

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

    def _of(self, sums: Array) -> Array:
        width = self._shape[0] * self._shape[1]
        tables = [sums[..., at * width : (at + 1) * width].reshape(*sums.shape[:-1], *self._shape) for at in (0, 1)]
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
        """Of everyone and of each judged group."""
        found = {"": self._mix(None)}
        return found | {names[code]: self._mix(code) for code in self.judged}

    def _mix(self, code: int | None) -> Mix:
        sides = []
        for test in self._tests:
            mine = np.ones(len(test.users), np.bool_) if code is None else test.codes == code
            is_few = is_small(test, mine, self._min_size)
            sides.append((int(mine.sum()), *mix_of_sums(test.sums(mine), is_few=is_few)))
        return joined_mix(*sides)


def is_small(test: Breakdown, chosen: Mask, min_size: int) -> bool:
    """Whether the newcomers, or the known ones, among the chosen users are too few to report apart."""
    n_new, n = int((test.is_newcomer & chosen).sum()), int(chosen.sum())
    return 0 < n_new < min_size or 0 < n - n_new < min_size


def mix_of_sums(sums: Array, *, is_few: bool) -> tuple[float | None, float]:
    """The shares of newcomers (None where they are too few) and of new items, from sums (strata, columns)."""
    total = max(float(sums[:, WEIGHT].sum()), 1e-12)
    newcomers = None if is_few else float(sums[N_LENGTHS:, WEIGHT].sum()) / total
    return newcomers, 1.0 - float(sums[:, KNOWN].sum()) / total


Side = tuple[int, float | None, float]
"""Of one test: the users, the share of newcomers, and the share of new items."""


def joined_mix(before: Side, after: Side) -> Mix:
    """Both tests side by side."""
    return Mix((before[0], after[0]), (before[1], after[1]), (before[2], after[2]))


def _change(observed: Array, drawn: Array | None, has_lever: bool) -> Change:
    def estimate(at: int) -> Estimate:
        value = float(observed[at])
        if drawn is None or np.isnan(value) or not np.isfinite(drawn[:, at]).any():
            return Estimate(value)
        interval = Interval.of(value, drawn[:, at])
        return Estimate(value, (interval.low, interval.high))

    names = (*FACTORS, LEARNING, *((LEVER,) if has_lever else ()))
    parts = {name: estimate(3 + at) for at, name in enumerate(names)}
    return Change(
        float(observed[0]), float(observed[1]), estimate(2), parts, estimate(len(observed) - 1) if has_lever else None
    )


def _packed(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "interval": None if estimate.interval is None else list(estimate.interval)}


def _unpacked(stored: Mapping[str, Any]) -> Estimate:
    interval = stored["interval"]
    return Estimate(stored["value"], None if interval is None else (interval[0], interval[1]))
