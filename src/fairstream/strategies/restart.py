"""Fine-tuning with restart   (Section 3.1): retrain on a schedule, on evidence, or by the bounds of the theory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

import numpy as np
from scipy.special import stdtrit

from fairstream.data import History, Rows
from fairstream.data.history import Floats
from fairstream.errors import ConfigurationError
from fairstream.strategies.strategy import STRATEGIES, Memory, Period, Plan, Strategy, UserQuality
from fairstream.theory import (
    Bounds,
    ExcessLoss,
    fine_tuning_bound,
    item_shift,
    regret_of_fine_tuning,
    retention,
    retraining_bound,
)
from fairstream.training import TrainingReport

LEAST_USERS: Final = 20
"""A mean over fewer users is not compared."""
MOST_USERS: Final = 20_000
"""Of more tested users, about so many are remembered, drawn at random."""
N_STEPS: Final = 8
"""Steps from one period to the next that are averaged for the step to come."""


class RestartEvery(Strategy):
    """Retrain every R-th period, fine-tune in between.

    Fine-tuning forgets old distributions exponentially fast, which is good, but its learning
    error does not shrink with the past it has seen; from time to time the model is retrained on
    everything and fine-tuning continues from there   (Section 3.1).
    """

    def __init__(self, n_periods: int) -> None:
        if n_periods < 1:
            raise ConfigurationError(f"a restart comes every so many periods, at least 1, got {n_periods}")
        self.n_periods = n_periods

    def plan(self, period: Period) -> Plan:
        since_restart = int(period.memory.get("since_restart", 0)) + 1
        reason = f"this is period {since_restart} of {self.n_periods} since the last restart"
        if since_restart < self.n_periods:
            return Plan.fine_tune(period).remembering(since_restart=since_restart).because(f"no restart: {reason}")
        return Plan.retrain(period).remembering(since_restart=0).because(f"restart: {reason}")


# ── on evidence ──────────────────────────────────────────────────────────────────────────────


class RestartOnDegradation(Strategy):
    """Retrain when a test says that quality, or a group's gap to the rest, is worse than since the last restart.

    What is compared is each user's NDCG minus that of recent popularity on the same events, so that a
    period that is hard for everybody is no reason to retrain. The last `window` periods are compared with all
    earlier ones since the last restart: user by user where users recur, by the means of the others, and the
    two by their precision. Both are how W_{t−1} did on D_t before learning it, so the decision uses nothing that
    would not have been known on the day.

    The n-th test since a restart is made at the level (1 − confidence) / (n (n + 1)), one half of it for the quality,
    the other for the groups' gaps together. These sum to 1 − confidence: whoever has not degraded is
    retrained needlessly with at most that probability until the end of time, as far as users are independent draws.

    Parameters
    ----------
    confidence
        The probability with which a model that has not degraded is never retrained.
    window
        Periods that are compared with those before; more of them see smaller changes, later.

    """

    needs_quality = True

    def __init__(self, confidence: float = 0.95, window: int = 2) -> None:
        if not 0 < confidence < 1:
            raise ConfigurationError(f"confidence must be between 0 and 1, got {confidence:g}")
        if window < 1:
            raise ConfigurationError(f"a window has at least one period, got {window}")
        self.confidence, self.window = confidence, window

    def plan(self, period: Period) -> Plan:
        memory, tested = period.memory, period.tested
        if tested is None or len(tested.users) == 0:
            reason = "no restart: nobody whom the model knows could be tested on this period"
            return Plan.fine_tune(period).remembering(**memory).because(reason)
        before = _UserSums.read(memory.get("before"))
        recent = [*map(_UserSums.read, memory.get("recent", ())), _UserSums.of(period, tested)]
        n_tests = int(memory.get("n_tests", 0))
        if len(recent) < self.window or len(before.users) == 0:
            n_missing = self.window - len(recent) + 1
            reason = f"no restart: {n_missing} more period(s) are needed before there is something to compare with"
        else:
            n_tests += 1
            level = (1 - self.confidence) / (n_tests * (n_tests + 1))
            is_worse, finding = self._compare(before, _UserSums.sum(recent), tested, level)
            if is_worse:
                return Plan.retrain(period).because(f"restart: {finding}")
            reason = f"no restart: {finding}"
        if len(recent) == self.window:
            before, recent = before.plus(recent[0]), recent[1:]
        following = {"n_tests": n_tests, "before": before.stored(), "recent": [part.stored() for part in recent]}
        return Plan.fine_tune(period).remembering(**following).because(reason)

    def forget(self, memory: Memory, users: Rows) -> Memory:
        if not memory:
            return memory
        before, *recent = (
            _UserSums.read(part).without(users).stored() for part in (memory.get("before"), *memory.get("recent", ()))
        )
        return {**memory, "before": before, "recent": recent}

    def _compare(self, before: _UserSums, now: _UserSums, tested: UserQuality, level: float) -> tuple[bool, str]:
        """Whether the model has degraded, and what was found, as a part of a sentence."""
        surely = f"({100 * self.confidence:g} % confidence)"
        everyone = _change(before, now)
        if everyone is None:
            return False, f"fewer than {LEAST_USERS} users can be compared"
        quality = f"NDCG beside that of recent popularity has changed by {everyone:+} since the last restart"
        if everyone.is_below_zero(level / 2):
            return True, f"{quality}, which chance does not explain {surely}"
        codes, names = tested.groups.codes, tested.groups.names
        changes = {
            code: change
            for code in range(len(names))
            if (change := _change(before.where(codes[before.users] == code), now.where(codes[now.users] == code)))
        }
        compared, found = list(changes), []
        for code in compared if len(compared) > 1 else ():
            others = [other for other in compared if other != code]
            rest = _change(
                before.where(np.isin(codes[before.users], others)), now.where(np.isin(codes[now.users], others))
            )
            assert rest is not None
            of_users = codes[tested.users]
            behind = _difference(tested.values[of_users == code], tested.values[np.isin(of_users, others)])
            worse = changes[code].minus(rest)
            found.append((worse, names[code]))
            its_level = level / 2 / len(compared)
            # A group that was ahead and is ahead by less has not fallen behind.
            if worse.is_below_zero(its_level) and behind.is_below_zero(its_level):
                gap = (
                    f"NDCG of {names[code]} minus that of the rest, beside recent popularity, has changed by {worse:+}"
                )
                return True, f"{gap} since the last restart, which chance does not explain {surely}"
        gaps = ""
        if found:
            worst, name = min(found)
            gaps = f", and that of {name} minus that of the rest by {worst:+}"
        return False, f"{quality}{gaps}: no loss that chance would not explain {surely}"


class _Change(NamedTuple):
    """A difference of means, its variance, and the number of users that the variance was estimated from."""

    value: float
    variance: float
    n_users: int

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.variance)

    def minus(self, other: _Change) -> _Change:
        """Of other users: the two are independent."""
        return _Change(self.value - other.value, self.variance + other.variance, min(self.n_users, other.n_users))

    def is_below_zero(self, level: float) -> bool:
        """Whether a one-sided t-test at this level says so."""
        return self.value < float(stdtrit(self.n_users - 1, level)) * self.standard_error

    def __format__(self, form: str) -> str:
        return f"{self.value:{form}.4f} ± {self.standard_error:.4f}"


@dataclass(frozen=True, eq=False)
class _UserSums:
    """Sums of values over periods, of each user."""

    users: Rows
    """Ascending."""
    n: Rows
    """In how many periods each was tested."""
    total: Floats

    @classmethod
    def of(cls, period: Period, tested: UserQuality) -> Self:
        """One period's values beside the reference."""
        users, values = tested.users, tested.values - tested.reference
        if len(users) > MOST_USERS:  # the same users in every period
            drawn = period.randomness.numpy("tested users").random(len(tested.groups.codes))[users]
            is_kept = drawn < MOST_USERS / len(users)
            users, values = users[is_kept], values[is_kept]
        return cls(users, np.ones(len(users), np.int64), values)

    @classmethod
    def sum(cls, parts: list[Self]) -> Self:
        """Several periods as one."""
        users, rows = np.unique(np.concatenate([part.users for part in parts]), return_inverse=True)
        n = np.bincount(rows, np.concatenate([part.n for part in parts]), minlength=len(users))
        total = np.bincount(rows, np.concatenate([part.total for part in parts]), minlength=len(users))
        return cls(users, n.astype(np.int64), total.astype(np.float64))

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> Self:
        """The inverse of `stored`; None: no period yet."""
        stored = stored or {"users": [], "n": [], "total": []}
        users, n = (np.array(stored[name], dtype=np.int64) for name in ("users", "n"))
        return cls(users, n, np.array(stored["total"], dtype=np.float64))

    def stored(self) -> dict[str, Any]:
        """As JSON."""
        return {"users": self.users.tolist(), "n": self.n.tolist(), "total": self.total.round(6).tolist()}

    @property
    def means(self) -> Floats:
        return self.total / self.n

    def plus(self, other: Self) -> Self:
        return self.sum([self, other])

    def where(self, rows: np.ndarray[Any, Any]) -> Self:
        return type(self)(self.users[rows], self.n[rows], self.total[rows])

    def without(self, gone: Rows) -> Self:
        """Without these users; the later ones move up."""
        kept = self.where(~np.isin(self.users, gone))
        return type(self)(kept.users - np.searchsorted(gone, kept.users), kept.n, kept.total)


def _change(before: _UserSums, now: _UserSums) -> _Change | None:
    """How much the mean has changed: the same users where they recur, the means of the others, by their precision."""
    _, at_before, at_now = np.intersect1d(before.users, now.users, assume_unique=True, return_indices=True)
    parts = []
    if len(at_now) >= LEAST_USERS:
        difference = now.means[at_now] - before.means[at_before]
        parts.append(_Change(difference.mean(), difference.var(ddof=1) / len(difference), len(difference)))
    old, new = np.delete(before.means, at_before), np.delete(now.means, at_now)
    if min(len(old), len(new)) >= LEAST_USERS:
        parts.append(_difference(new, old))
    if not parts:
        return None
    values, variances, n_users = np.array(parts).T
    precisions = 1 / np.maximum(variances, 1e-12)
    return _Change(float(values @ precisions / precisions.sum()), float(1 / precisions.sum()), int(n_users.min()))


def _difference(values: Floats, others: Floats) -> _Change:
    """Of the means of two sets of users, without pairs."""
    n_users = min(len(values), len(others))
    if n_users < 2:
        return _Change(0.0, math.inf, 2)
    variance = values.var(ddof=1) / len(values) + others.var(ddof=1) / len(others)
    return _Change(float(values.mean() - others.mean()), float(variance), n_users)


# ── by the bounds ────────────────────────────────────────────────────────────────────────────


class RestartByBound(Strategy):
    """Retrain when, by the bounds of Theorems 1 and 2, going on with fine-tuning has cost more than a restart.

    Each period both bounds on the loss in the next one are computed with quantities estimated from the stream:
    the sizes of the periods, the shift of each to the next one (`theory.item_shift` to the latest one; from
    that to the next, the mean of the last steps), γ from how far the loss fell in the last
    fine-tuning (`theory.retention`), and ς from the spread of the users' NDCG. What retraining would have
    saved is summed since the last restart; at `price` the model is retrained.

    The estimates of the shift see the items alone, and so less of it than there is, which favours retraining; the
    bounds are upper bounds, and the one that is lower need not be that of the better model.

    Parameters
    ----------
    price
        What a restart costs, in NDCG × periods: 0.01 is a hundredth of NDCG for one period. 0 retrains as soon as
        the bound of retraining is the lower one.

    """

    needs_quality = True

    def __init__(self, price: float = 0.01) -> None:
        if not price >= 0:
            raise ConfigurationError(f"the price of a restart must be 0 or more, got {price:g}")
        self.price = price

    def plan(self, period: Period) -> Plan:
        memory, n_periods = period.memory, len(period.history.ends)
        gamma = memory.get("retention")
        values = None if period.tested is None else period.tested.values
        if gamma is None or values is None or len(values) < LEAST_USERS:
            unknown = (
                "how much fine-tuning retains is not known yet"
                if gamma is None
                else f"fewer than {LEAST_USERS} users whom the model knows could be tested"
            )
            return Plan.fine_tune(period).remembering(**memory).because(f"no restart: {unknown}")
        shifts = shifts_to_the_next(period.history)
        sizes = np.maximum(np.diff(period.history.ends, prepend=0), 2)
        scale, started = float(values.std(ddof=1)), int(memory.get("started", 0))
        bounds = Bounds(
            fine_tuning_bound(sizes, shifts, gamma, started=started, scale=scale),
            retraining_bound(sizes, shifts, scale=scale),
        )
        regret = regret_of_fine_tuning(float(memory.get("regret", 0.0)), bounds)
        finding = (
            f"the bound of fine-tuning (γ {gamma:.2f}) is {_shown(bounds.fine_tuning)}, that of retraining "
            f"{_shown(bounds.retraining)}; fine-tuning has cost {regret:.4f} since the last restart, and one costs "
            f"{self.price:g}"
        )
        if regret > self.price:
            plan = Plan.retrain(period).remembering(started=n_periods - 1, retention=gamma)
            return plan.because(f"restart: {finding}")
        plan = Plan.fine_tune(period).remembering(**{**memory, "regret": regret})
        return plan.because(f"no restart: {finding}")

    def after(self, plan: Plan, report: TrainingReport | None) -> Memory:
        gamma = None if report is None or plan.start == "fresh" else retention(report.losses)
        return plan.memory if gamma is None else {**plan.memory, "retention": gamma}


def shifts_to_the_next(history: History, *, k: int = 20) -> Floats:
    """Estimate d of each period so far to the next one, which is taken to differ from the past as the latest one does.

    From the latest to the next it is the mean of the last steps from period to period.

    >>> rng = np.random.default_rng(0)
    >>> history = History.of(rng.integers(0, 100, 2000), rng.integers(0, 30, 2000))
    >>> history = history.after(rng.integers(0, 100, 2000), rng.integers(30, 60, 2000))
    >>> shifts_to_the_next(history).round(1)
    array([0.2, 0.2])
    """
    starts = (0, *history.ends[:-1])
    periods = [
        (history.users_at(range(start, end)), history.items_at(range(start, end)))
        for start, end in zip(starts, history.ends, strict=True)
    ]
    past = [item_shift(period, periods[-1], k=k).value for period in periods[:-1]]
    latest = periods[-N_STEPS - 1 :]
    steps = [item_shift(one, other, k=k).value for one, other in pairwise(latest)]
    return np.maximum([*past, float(np.mean(steps)) if steps else 0.0], 0.0)


def _shown(bound: ExcessLoss) -> str:
    return f"{bound.total:.4f} (shift {bound.shift:.4f}, learning error {bound.learning_error:.4f})"


STRATEGIES.register("restart-on-degradation", RestartOnDegradation)
STRATEGIES.register("restart-by-bound", RestartByBound)
