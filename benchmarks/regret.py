"""Bias and coverage of regret, and moves under pure noise: `python -m benchmarks.regret [REPLICATIONS]`.

Users' values are like NDCG: three in four are 0, the others are Beta(0.5, 2), with a mean of .05. A level replaces the
value of some users by another draw, so values at different levels are correlated as in a replay. The truth is known: a
level multiplies the mean by 1 + effect. Tables print, for the group's regret against the best level,

- the bias of the naive estimate (the level that looks best, valued on the same users) and of the cross-fitted one,
- how often the 95 % interval covers the truth;

and how often a target moves although no level changes anything: per decision, and per stream of ten periods.
"""

from __future__ import annotations

import sys

import numpy as np

from fairstream.evaluation.by_group import GroupScores
from fairstream.evaluation.regret import LevelPanel, with_regret
from fairstream.models import NO_LEVEL, levels_of
from fairstream.strategies import LeastRegret, MaxGap, PeriodReplay

LEVELS = levels_of(["A", "B"])
_SHARE_CHANGED = 0.3  # of the users, at the highest weight
CASES = {
    "no level changes anything": np.zeros(len(LEVELS)),
    "one direction +10 %, the other −5 %": None,
    "all levels worse by 0 to 10 %": -np.linspace(0, 0.10, len(LEVELS)),
    "one direction +20 %": None,
}


def effects(name: str) -> np.ndarray:
    """(L,) by which share each level changes the mean."""
    given = CASES[name]
    if given is not None:
        return given
    size = 0.10 if "+10" in name else 0.20
    rungs = np.linspace(0.2, 1.0, (len(LEVELS) - 1) // 2)
    return np.concatenate([[0.0], -0.05 * rungs, size * rungs])


def values(n: int, effect: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n, L) users' values at each level."""

    def draw(factor: float) -> np.ndarray:
        return (rng.random(n) < 0.25 * factor) * rng.beta(0.5, 2.0, n)

    base = draw(1.0)
    columns = [base]
    order = rng.random(n)
    rungs = (len(effect) - 1) // 2
    for half in range(2):
        other = draw(1.0)
        for rung in range(rungs):
            e = effect[1 + half * rungs + rung]
            share = _SHARE_CHANGED * (rung + 1) / rungs
            is_changed = order < share if half == 0 else order > 1 - share
            new = np.where(rng.random(n) < 1 + e / share, other, 0.0) if e < 0 else other
            gain = draw(max(0.0, e / share)) if e > 0 else 0.0
            columns.append(np.where(is_changed, np.maximum(new, gain), base))
    return np.stack(columns, axis=1)


def truth(effect: np.ndarray) -> float:
    """The regret without a level, from the means of a large sample."""
    means = np.mean([values(200_000, effect, np.random.default_rng(s)).mean(axis=0) for s in range(5)], axis=0)
    means = np.where(np.abs(means / means[0] - 1) < 0.004, means[0], means)  # what the sample cannot tell from 0
    return float(1 - means[0] / means.max())


def coverage(n_replications: int) -> None:
    """Print bias and coverage in each case."""
    print(f"{'case':38} {'users':>6} {'truth':>7} {'naive':>7} {'cross':>7} {'covered':>8}")
    for name in CASES:
        effect = effects(name)
        regret = truth(effect)
        for n in (50, 200, 1000, 4000):
            naive, crossed, covered = [], [], []
            for seed in range(n_replications):
                rng = np.random.default_rng([seed, n])
                both = np.concatenate([values(n, effect, rng), values(n, effect, rng)])
                codes = np.repeat([0, 1], n).astype(np.int16)
                panel = LevelPanel(
                    LEVELS, np.column_stack([both[:, :1], both]) / n, np.full(2 * n, 1 / n), codes, ("A", "B")
                )
                scores = with_regret(GroupScores(), panel, rng, 200)
                estimate, means = scores.regret["B"], panel.means()["B"]
                naive.append(1 - means[0] / max(means.max(), 1e-12))
                crossed.append(estimate.value)
                covered.append(estimate.low - 1e-9 <= regret <= estimate.high + 1e-9)
            bias = np.mean(naive) - regret, np.mean(crossed) - regret
            print(f"{name:38} {n:6} {regret:7.3f} {bias[0]:+7.3f} {bias[1]:+7.3f} {np.mean(covered):8.1%}", flush=True)


def moves(n_replications: int) -> None:
    """Print how often each target moves by noise alone."""
    print(f"\n{'target, users of each group a period':44} {'decisions':>10} {'streams':>8}")
    for target in (LeastRegret(), LeastRegret(max_group_loss=0.2), MaxGap(0.01), MaxGap(0.02)):
        for sizes in ((100, 30), (400, 100), (1500, 500)):
            n_moves, n_moved = 0, 0
            for seed in range(n_replications):
                rng, memory, moved = np.random.default_rng([seed, *sizes]), {}, 0
                for _ in range(10):
                    both = np.concatenate([values(n, np.zeros(len(LEVELS)), rng) for n in sizes])
                    codes = np.repeat([0, 1], sizes)
                    decision = target.decide(memory, PeriodReplay.of(LEVELS, both, codes, ("A", "B"), 20))
                    memory = decision.memory
                    moved += decision.level != NO_LEVEL
                n_moves, n_moved = n_moves + moved, n_moved + (moved > 0)
            rates = n_moves / n_replications / 10, n_moved / n_replications
            print(f"{f'{target}, {sizes}':68} {rates[0]:6.1%} {rates[1]:6.1%}", flush=True)


if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    coverage(n)
    moves(n)
