"""False positives and power of the sequential tests under continuous peeking: `python -m benchmarks.peeking [RUNS]`.

Each run is an experiment that is looked at after every event: after every user where each comes once. Without an
effect, any look that shows a difference is a false positive. With an effect, the number of users at the first look that
shows it is compared with the sample that a test at one fixed moment needs for a power of 80 % and 90 %.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import norm

from fairstream import ArmTotals, win_rate_test
from fairstream.evaluation.sequential import evidence, first_scale, is_large, radius_of

Draw = Callable[[np.random.Generator], tuple[Any, Any, Any, Any]]
Outcomes = Callable[[np.random.Generator, int], Any]
BASE, SHOWN, SPREAD = 0.10, 20, 10.0  # click-through, items shown to a user, a + b of the users' beta distribution


def peeking(draw: Draw, *, n_runs: int, alpha: float = 0.05, n_tests: int = 1, seed: int = 0) -> Any:
    """Simulate an experiment that is looked at after every event; return when each run first shows a difference.

    `draw` returns for each event, in order: the user, the arm (0 or 1), the exposures and the outcomes that it adds.
    A run that never shows a difference gets infinity.
    """
    first = np.full(n_runs, np.inf)
    for run in range(n_runs):
        a, b = _paths(*draw(np.random.default_rng([seed, run])))
        has_enough = is_large(a, b)
        if not has_enough.any():
            continue
        start = int(has_enough.argmax())
        with np.errstate(divide="ignore", invalid="ignore"):
            difference, weight, variance = evidence(a, b, 1.0)
            scale = first_scale(variance[start])
            shows = has_enough & (np.abs(difference) * weight > radius_of(variance, scale, alpha / n_tests))
        if shows.any():
            first[run] = shows.argmax() + 1
    return first


def _paths(users: Any, arms: Any, exposures: Any, outcomes: Any) -> tuple[ArmTotals, ArmTotals]:
    """The totals of both arms after each event, as arrays; a user's events add up before they are squared."""
    order = np.argsort(users, kind="stable")
    ends = np.empty_like(order)
    ends[order] = np.arange(len(order))
    is_first = np.r_[True, np.diff(users[order]) != 0]

    def before_and_after(values: Any) -> tuple[Any, Any]:
        total = np.cumsum(values[order])
        starts = np.where(is_first, total - values[order], 0.0)
        at = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
        own = total - starts[at]
        return (own - values[order])[ends], own[ends]

    (x0, x1), (y0, y1) = before_and_after(exposures.astype(float)), before_and_after(outcomes.astype(float))
    is_new = np.empty(len(order))
    is_new[order] = is_first
    steps = (is_new, x1 - x0, y1 - y0, x1 * x1 - x0 * x0, x1 * y1 - x0 * y0, y1 * y1 - y0 * y0)
    paths = [ArmTotals(*(np.cumsum(np.where(arms == arm, step, 0.0)) for step in steps)) for arm in (0, 1)]  # type: ignore[arg-type]
    return paths[0], paths[1]


def _once(outcomes: Outcomes, share: float = 0.5) -> Callable[[int], Draw]:
    """Users who come once."""

    def of(n: int) -> Draw:
        return lambda rng: (np.arange(n), rng.random(n) < share, np.ones(n), outcomes(rng, n).astype(float))

    return of


def _returning(n_visits: int, share: float = 0.5, *, heavy: bool = False) -> Callable[[int], Draw]:
    """Visits of SHOWN items in any order; users differ in their click-through, and in how often they come if
    `heavy`.
    """

    def of(n: int) -> Draw:
        def draw(rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
            n_users = n // n_visits
            weights = rng.pareto(1.5, n_users) + 0.1 if heavy else np.ones(n_users)
            users = rng.choice(n_users, n, p=weights / weights.sum())
            taste = rng.beta(BASE * SPREAD, (1 - BASE) * SPREAD, n_users)[users]
            arms = (rng.random(n_users) < share)[users]
            return users, arms, np.full(n, float(SHOWN)), rng.binomial(SHOWN, taste).astype(float)

        return draw

    return of


NULLS: dict[str, Callable[[int], Draw]] = {
    "2 % of users click": _once(lambda rng, n: rng.binomial(1, 0.02, n)),
    "10 % of users click": _once(lambda rng, n: rng.binomial(1, 0.1, n)),
    "50 % of users click": _once(lambda rng, n: rng.binomial(1, 0.5, n)),
    "counts with a heavy tail": _once(lambda rng, n: rng.poisson(np.minimum(rng.pareto(2.0, n), 1000.0))),
    "amounts with a heavy tail": _once(lambda rng, n: rng.binomial(1, 0.1, n) * rng.lognormal(3, 1.5, n)),
    "10 % of users get B": _once(lambda rng, n: rng.binomial(1, 0.1, n), share=0.1),
    "returning users": _returning(5),
    "few users who return often": _returning(50),
    "some users return far more often": _returning(10, heavy=True),
    "10 % of returning users get B": _returning(10, share=0.1),
}


def null(name: str, n: int = 10_000) -> Draw:
    """Return an experiment of `n` events without an effect."""
    return NULLS[name](n)


def effect(lift: float, n: int = 40_000) -> Draw:
    """Users who see SHOWN items each; B's click-through is higher by a share."""

    def draw(rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
        arms = rng.integers(0, 2, n)
        rate = BASE * (1 + lift * arms)
        taste = rng.beta(rate * SPREAD, (1 - rate) * SPREAD)
        return np.arange(n), arms, np.full(n, float(SHOWN)), rng.binomial(SHOWN, taste).astype(float)

    return draw


def groups_false_positives(n_runs: int, n: int = 10_000, shares: tuple[float, ...] = (0.6, 0.3, 0.1)) -> float:
    """Share of runs in which any group shows a difference; the groups differ in size and click-through."""
    found = np.zeros(n_runs, np.bool_)
    for g, share in enumerate(shares):
        draw = _once(lambda rng, n, g=g: rng.binomial(1, 0.05 * (g + 1), n))(int(n * share))  # type: ignore[misc]
        found |= np.isfinite(peeking(draw, n_runs=n_runs, n_tests=len(shares), seed=g))
    return float(found.mean())


def win_rate_false_positives(n_runs: int, n: int = 3000) -> float:
    """Share of runs of fair trials in which a look after any of them shows a difference."""
    rng, n_found = np.random.default_rng(0), 0
    for _ in range(n_runs):
        wins = np.cumsum(rng.integers(0, 2, n))
        # Only the outermost looks can show one: those where the win rate is furthest from 1/2 for their number.
        far = np.abs(2 * wins - np.arange(1, n + 1)) / np.sqrt(np.arange(1, n + 1))
        looks = np.argsort(-far)[:50]
        n_found += any(win_rate_test(int(wins[at]), int(at + 1 - wins[at])).e_value >= 20 for at in looks)
    return n_found / n_runs


def fixed_sample(lift: float, power: float) -> int:
    """Users of both arms whom a test at one fixed moment needs."""

    def variance(rate: float) -> float:
        between = rate * (1 - rate) / (SPREAD + 1)
        return between + (rate * (1 - rate) - between) / SHOWN

    z = norm.ppf(0.975) + norm.ppf(power)
    return int(np.ceil(2 * z**2 * (variance(BASE) + variance(BASE * (1 + lift))) / (BASE * lift) ** 2))


def main() -> None:
    """Print the tables."""
    n_runs, begin = int(sys.argv[1]) if len(sys.argv) > 1 else 2000, time.perf_counter()

    def row(*cells: str) -> None:
        print(f"| {' | '.join(cells)} |", flush=True)

    print(f"{n_runs} runs of 10,000 events, a look after every event, α = 5 %\n\n| no effect | found |\n|---|--:|")
    for name in NULLS:
        row(name, f"{np.isfinite(peeking(null(name), n_runs=n_runs)).mean():.1%}")
    row("any of three groups (60, 30 and 10 % of users)", f"{groups_false_positives(n_runs):.1%}")
    row("win rate, 3,000 trials", f"{win_rate_false_positives(n_runs):.1%}")
    print("\n| effect | found by 40,000 users | median users | fixed, power 80 % | 90 % |\n|---|--:|--:|--:|--:|")
    for lift in (0.05, 0.1, 0.2):
        first = peeking(effect(lift), n_runs=n_runs // 4)
        users = f"{np.median(first):,.0f}" if np.isfinite(np.median(first)) else "> 40,000"
        fixed = [f"{fixed_sample(lift, power):,}" for power in (0.8, 0.9)]
        row(f"+{lift:.0%}", f"{np.isfinite(first).mean():.0%}", users, *fixed)
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
