"""Fine-tuning with restarts when a test finds a loss   (Section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from scipy.special import stdtrit

from fairstream.data import Rows
from fairstream.data.history import Floats
from fairstream.errors import ConfigurationError
from fairstream.strategies.strategy import (
    STRATEGIES,
    Memory,
    Period,
    Plan,
    Strategy,
    UserQuality,
    check_count,
    check_update,
)

MIN_USERS: Final = 20  # means over fewer users are not compared
MAX_USERS: Final = 20_000  # of more tested users, about this many are remembered, drawn at random


@dataclass(frozen=True)
class RestartOnDegradation(Strategy):
    """Retrain when a test says that quality, or a group's gap to the rest, is worse than since the last restart.

    The test compares each user's NDCG minus that of recent popularity on the same events, so that a hard period is no
    reason to retrain: the last `window` periods with all earlier ones since the last restart, user by user where users
    recur, else by means, weighted by precision. All values come from W_{t−1} on D_t, before it learned D_t.

    The n-th test since a restart has the level (1 − confidence) / (n (n + 1)), half of it for the quality, half for
    the groups' gaps together. These levels sum to 1 − confidence, the largest probability that a model that has not
    degraded is ever retrained, as far as users are independent draws.

    Parameters
    ----------
    confidence
        The probability with which a model that has not degraded is never retrained.
    window
        Periods that are compared with those before; more of them see smaller changes, later.
    epochs, learning_rate
        Of each update; by default the model's own.

    """

    confidence: float = 0.95
    window: int = 2
    epochs: int | None = None
    learning_rate: float | None = None
    needs_quality: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_update(self)
        if not (isinstance(self.confidence, float | int) and 0 < self.confidence < 1):
            raise ConfigurationError(f"confidence must be between 0 and 1, got {self.confidence!r}")
        check_count("window", self.window)

    def plan(self, period: Period) -> Plan:
        memory, tested = period.memory, period.tested
        if tested is None or len(tested.users) == 0:
            reason = "no restart: no user whom the model knows could be tested on this period"
            return Plan.fine_tune(period).remembering(**memory).because(reason)
        before = _UserSums.read(memory.get("before"))
        recent = [*map(_UserSums.read, memory.get("recent", ())), _UserSums.of(period, tested)]
        n_tests = int(memory.get("n_tests", 0))
        if len(recent) < self.window or len(before.users) == 0:
            reason = f"no restart: a comparison needs {self.window - len(recent) + 1} more period(s)"
        else:
            n_tests += 1
            level = (1 - self.confidence) / (n_tests * (n_tests + 1))
            is_worse, finding = self._compare(before, _UserSums.sum(recent), tested, level)
            if is_worse:
                return Plan.retrain(period).because(f"restart: {finding}")
            reason = f"no restart: {finding}"
        if len(recent) == self.window:
            before, recent = _UserSums.sum([before, recent[0]]), recent[1:]
        following = {"n_tests": n_tests, "before": before.to_json(), "recent": [part.to_json() for part in recent]}
        return Plan.fine_tune(period).remembering(**following).because(reason)

    def forget(self, memory: Memory, users: Rows) -> Memory:
        if not memory:
            return memory
        before, *recent = (
            _UserSums.read(part).without(users).to_json() for part in (memory.get("before"), *memory.get("recent", ()))
        )
        return {**memory, "before": before, "recent": recent}

    def _compare(self, before: _UserSums, now: _UserSums, tested: UserQuality, level: float) -> tuple[bool, str]:
        surely = f"({100 * self.confidence:g} % confidence)"
        everyone = _change(before, now)
        if everyone is None:
            return False, f"fewer than {MIN_USERS} users can be compared"
        quality = f"NDCG relative to recent popularity changed by {everyone:+} since the last restart"
        if everyone.is_below_zero(level / 2):
            return True, f"{quality}, which chance does not explain {surely}"
        codes, names, tested_codes = tested.groups.codes, tested.groups.names, tested.groups.codes[tested.users]

        def change_of(of_codes: list[int]) -> _Change | None:
            return _change(*(sums.where(np.isin(codes[sums.users], of_codes)) for sums in (before, now)))

        changes = {code: change for code in range(len(names)) if (change := change_of([code])) is not None}
        gaps = []
        for code in changes if len(changes) > 1 else ():
            others = [other for other in changes if other != code]
            rest = change_of(others)
            assert rest is not None
            behind = _difference(tested.values[tested_codes == code], tested.values[np.isin(tested_codes, others)])
            own = changes[code]  # of other users than the rest: independent
            worse = _Change(own.value - rest.value, own.variance + rest.variance, min(own.n_users, rest.n_users))
            gaps.append((worse, names[code]))
            # A group that was ahead and is ahead by less has not fallen behind.
            if all(part.is_below_zero(level / 2 / len(changes)) for part in (worse, behind)):
                return True, (
                    f"NDCG of {names[code]} minus that of the rest, relative to recent popularity, changed by "
                    f"{worse:+} since the last restart, which chance does not explain {surely}"
                )
        worst, name = min(gaps, default=(None, ""))
        gap = "" if worst is None else f", and that of {name} minus that of the rest by {worst:+}"
        return False, f"{quality}{gap}: no loss that chance would not explain {surely}"


class _Change(NamedTuple):
    """A difference of means, its variance, and the number of users that the variance was estimated from."""

    value: float
    variance: float
    n_users: int

    def is_below_zero(self, level: float) -> bool:
        """Whether a one-sided t-test at this level says so."""
        return self.value < float(stdtrit(self.n_users - 1, level)) * math.sqrt(self.variance)

    def __format__(self, form: str) -> str:
        return f"{self.value:{form}.4f} ± {math.sqrt(self.variance):.4f}"


class _UserSums(NamedTuple):
    """Sums of values over periods, of each user."""

    users: Rows  # ascending
    n: Rows  # the number of periods in which each was tested
    total: Floats

    @classmethod
    def of(cls, period: Period, tested: UserQuality) -> _UserSums:
        """Return one period's values relative to the reference."""
        users, values = tested.users, tested.values - tested.reference
        if len(users) > MAX_USERS:  # the same users in every period, so that they can be compared with themselves
            draws = period.randomness.numpy("tested users").random(len(tested.groups.codes))[users]
            is_drawn = draws < MAX_USERS / len(users)
            users, values = users[is_drawn], values[is_drawn]
        return cls(users, np.ones(len(users), np.int64), values)

    @classmethod
    def sum(cls, parts: list[_UserSums]) -> _UserSums:
        users, n, total = (np.concatenate(column) for column in zip(*parts, strict=True))
        distinct, rows = np.unique(users, return_inverse=True)
        return cls(distinct, np.bincount(rows, n).astype(np.int64), np.bincount(rows, total).astype(np.float64))

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> _UserSums:
        """Invert `to_json`; None: no period yet."""
        columns = [] if stored is None else [stored[name] for name in cls._fields]
        users, n, total = columns or ([], [], [])
        return cls(np.array(users, np.int64), np.array(n, np.int64), np.array(total, np.float64))

    def to_json(self) -> dict[str, Any]:
        return {"users": self.users.tolist(), "n": self.n.tolist(), "total": self.total.round(6).tolist()}

    @property
    def means(self) -> Floats:
        return self.total / self.n

    def where(self, rows: np.ndarray[Any, Any]) -> _UserSums:
        return _UserSums(self.users[rows], self.n[rows], self.total[rows])

    def without(self, gone: Rows) -> _UserSums:
        """Drop these users; the rows of later users move up."""
        left = self.where(~np.isin(self.users, gone))
        return left._replace(users=left.users - np.searchsorted(gone, left.users))


def _change(before: _UserSums, now: _UserSums) -> _Change | None:
    """How much the mean changed: over the same users where they recur, over the others' means, by precision."""
    _, at_before, at_now = np.intersect1d(before.users, now.users, assume_unique=True, return_indices=True)
    parts = []
    if len(at_now) >= MIN_USERS:
        difference = now.means[at_now] - before.means[at_before]
        parts.append(_Change(difference.mean(), difference.var(ddof=1) / len(difference), len(difference)))
    old, new = np.delete(before.means, at_before), np.delete(now.means, at_now)
    if min(len(old), len(new)) >= MIN_USERS:
        parts.append(_difference(new, old))
    if not parts:
        return None
    values, variances, n_users = np.array(parts).T
    precisions = 1 / np.maximum(variances, 1e-12)
    return _Change(float(values @ precisions / precisions.sum()), float(1 / precisions.sum()), int(n_users.min()))


def _difference(values: Floats, others: Floats) -> _Change:
    n_users = min(len(values), len(others))
    if n_users < 2:
        return _Change(0.0, math.inf, 2)
    variance = values.var(ddof=1) / len(values) + others.var(ddof=1) / len(others)
    return _Change(float(values.mean() - others.mean()), float(variance), n_users)


STRATEGIES.register("restart-on-degradation", RestartOnDegradation)
