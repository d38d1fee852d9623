"""How often the confidence intervals cover and the permutation tests reject, on simulated users with a known disparity.

    python -m benchmarks.coverage [replications] [seed]

The tables are those of docs/explanation/fairness.md. A replication is a metric of one panel, so that many
share the bookkeeping; `replications` is rounded up to whole panels of 50.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairstream.evaluation import Estimate, GroupPanel, Paired, panel_scores

Array = np.ndarray[Any, np.dtype[np.float64]]
N_RESAMPLES, AT_ONCE = 399, 50


@dataclass(frozen=True)
class Law:
    """How the values of a group's users are distributed; its mean is `mean`."""

    mean: float
    draw: Callable[[np.random.Generator, tuple[int, int, int]], Array]


def sparse(share: float) -> Law:
    """Mostly zeros: a `share` of non-zero values ~ Beta(0.5, 2), users differing in their share over the periods."""

    def draw(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
        n_users, n_periods, n = shape
        own = share if n_periods == 1 else rng.beta(4 * share, 4 * (1 - share), (n_users, 1, n))
        return np.where(rng.random(shape) < own, rng.beta(0.5, 2.0, shape), 0.0)

    return Law(share * 0.2, draw)


def hit(share: float) -> Law:
    """0 or 1."""
    return Law(share, lambda rng, shape: (rng.random(shape) < share).astype(np.float64))


def beta(mean: float, concentration: float) -> Law:
    """Variance mean · (1 − mean) / (1 + concentration)."""
    a, b = mean * concentration, (1 - mean) * concentration
    return Law(mean, lambda rng, shape: rng.beta(a, b, shape))


@dataclass(frozen=True)
class Case:
    """Groups with known laws, and who of them is tested in which period."""

    name: str
    sizes: tuple[int, ...]
    laws: tuple[Law, ...]
    n_periods: int = 1
    attendance: tuple[float, ...] = ()
    """The share of each group that is tested in a period; everyone, where empty."""

    @property
    def disparity(self) -> float:
        """The true PD: the first group's mean minus that of all other users."""
        weights = np.array(self.sizes[1:]) * np.array(self.attendance[1:] or (1.0,) * len(self.laws[1:]))
        return self.laws[0].mean - float(np.average([law.mean for law in self.laws[1:]], weights=weights))

    @property
    def mean(self) -> float:
        weights = np.array(self.sizes) * np.array(self.attendance or (1.0,) * len(self.sizes))
        return float(np.average([law.mean for law in self.laws], weights=weights))

    def panels(self, rng: np.random.Generator, n: int) -> Iterator[GroupPanel]:
        codes = np.repeat(np.arange(len(self.sizes)), self.sizes).astype(np.int16)
        for _ in range(-(-n // AT_ONCE)):
            parts = [
                law.draw(rng, (size, self.n_periods, AT_ONCE)) for law, size in zip(self.laws, self.sizes, strict=True)
            ]
            values = np.concatenate(parts)
            if self.attendance:
                values[rng.random(values.shape[:2]) >= np.array(self.attendance)[codes][:, None]] = np.nan
            is_tested = ~np.isnan(values[:, :, 0]).all(axis=1)
            yield GroupPanel(values[is_tested], codes[is_tested], len(self.sizes), min_size=8)


TIGHT, WIDE = beta(0.25, 55.25), beta(0.25, 1.25)
"""Equal means, variances 1 : 25, the wide one skewed."""
FLAT_TIGHT, FLAT_WIDE = beta(0.5, 74), beta(0.5, 2)
"""The same, both symmetric."""
_ONE, _OTHER = sparse(0.25), sparse(0.15)
CASES = (
    Case("75 % zeros, 700 v 150, no disparity", (700, 150), (_ONE, _ONE)),
    Case("the same, PD .02", (700, 150), (_ONE, _OTHER)),
    Case("75 % zeros, 400 v 25", (400, 25), (_ONE, _ONE)),
    Case("25 v 400", (25, 400), (_ONE, _ONE)),
    Case("6 periods, 400 v 100, 40 % tested in each", (400, 100), (_ONE, _ONE), 6, (0.4, 0.4)),
    Case("6 periods, 60 % v 30 % tested", (400, 100), (_ONE, _ONE), 6, (0.6, 0.3)),
    Case("6 periods, PD .02", (400, 100), (_ONE, _OTHER), 6, (0.4, 0.4)),
    Case("5 groups of 300 to 30", (300, 200, 100, 60, 30), (_ONE,) * 5),
    Case("5 groups, 6 periods", (300, 200, 100, 60, 60), (_ONE,) * 5, 6, (0.4,) * 5),
    Case("5 groups, one behind by .02", (300, 200, 100, 60, 30), (_ONE, _OTHER, _ONE, _ONE, _ONE)),
    *(Case(f"86 % zeros, 1000 v {n}", (1000, n), (sparse(0.14),) * 2) for n in (20, 30, 50, 100, 300)),
    Case("86 % zeros, 30 v 25", (30, 25), (sparse(0.14),) * 2),
    Case("93 % zeros v 70 %, 1000 v 20", (1000, 20), (sparse(0.07), sparse(0.3))),
    Case("70 % zeros v 93 %, 1000 v 20", (1000, 20), (sparse(0.3), sparse(0.07))),
    Case("86 % zeros, 3 periods, 600 v 40, 50 % tested", (600, 40), (sparse(0.14),) * 2, 3, (0.5, 0.5)),
    *(Case(f"hit {share}, 1000 v 20", (1000, 20), (hit(share),) * 2) for share in (0.02, 0.15, 0.95)),
    Case("hit .15 v .35, 1000 v 20", (1000, 20), (hit(0.15), hit(0.35))),
    *(Case(f"dense Beta(2, 6), 1000 v {n}", (1000, n), (beta(0.25, 8),) * 2) for n in (20, 50)),
    Case("equal means, tight v wide, 800 v 100", (800, 100), (TIGHT, WIDE)),
    Case("equal means, wide v tight, 800 v 100", (800, 100), (WIDE, TIGHT)),
    Case("symmetric, tight v wide, 800 v 100", (800, 100), (FLAT_TIGHT, FLAT_WIDE)),
    Case("symmetric, wide v tight, 800 v 100", (800, 100), (FLAT_WIDE, FLAT_TIGHT)),
    Case("tight v wide, 6 periods, 50 % tested", (800, 100), (TIGHT, WIDE), 6, (0.5, 0.5)),
    Case("wide v tight, 6 periods, 50 % tested", (800, 100), (WIDE, TIGHT), 6, (0.5, 0.5)),
    Case("tight v wide, 800 v 20", (800, 20), (TIGHT, WIDE)),
    Case("tight ×3, wide ×2, 5 groups of 300 to 30", (300, 200, 100, 60, 30), (TIGHT, TIGHT, TIGHT, WIDE, WIDE)),
)


def show(case: Case, n: int, rng: np.random.Generator) -> str:
    """A row: coverage of PD, of the mean and of groups' means; rejections by PD and the largest gap; sizes of |PD|."""
    names = [str(code) for code in range(len(case.sizes))]
    scores = [score for panel in case.panels(rng, n) for score in panel_scores(panel, names, rng, N_RESAMPLES)]

    def covers(intervals: list[tuple[float, float]], truth: float) -> float:
        return float(np.mean([low <= truth <= high for low, high in intervals]))

    shares = (
        covers([score.disparity.interval for score in scores], case.disparity),
        covers([score.interval for score in scores], case.mean),
        min(
            covers([score.by_group_interval[name] for score in scores], law.mean)
            for name, law in zip(names, case.laws, strict=True)
        ),
        np.mean([score.disparity.p_value < 0.05 for score in scores]),
        np.mean([score.largest_gap.p_value < 0.05 for score in scores]),
    )
    sizes = (
        abs(case.disparity),
        *(
            np.mean([getattr(score, name) for score in scores])
            for name in ("abs_performance_disparity", "abs_performance_disparity_debiased", "null_mean")
        ),
    )
    return "| " + " | ".join([case.name, *(f"{x:.3f}" for x in shares), *(f"{x:.4f}" for x in sizes)]) + " |"


@dataclass(frozen=True)
class Pair:
    """Two methods on the same users: a user's luck is shared by both, and each has some of its own."""

    name: str
    disparities: tuple[float, float]
    n_seeds: int
    n_periods: int = 3
    sizes: tuple[int, int] = (600, 200)
    seed_sd: float = 0.004

    def show(self, n: int, rng: np.random.Generator) -> str:
        """A row: how often the intervals of the differences in mean and in |PD| cover."""
        codes = np.repeat([0, 1], self.sizes).astype(np.int16)
        share = np.average([0.0, 1.0], weights=self.sizes)
        mean, size, below = 0, 0, 0
        for _ in range(n):
            columns = []
            user = rng.beta(1.0, 3.0, (len(codes), 1)) + rng.normal(0, 0.1, (len(codes), self.n_periods))
            for disparity in self.disparities:
                own = rng.normal(0, 0.1, user.shape)
                for _ in range(self.n_seeds):
                    noise = rng.normal(0, 0.02, user.shape) + rng.normal(0, self.seed_sd)
                    columns.append(user + own + noise - disparity * codes[:, None] + disparity * share)
            panel = GroupPanel(np.stack(columns, axis=2), codes, 2)
            paired = Paired(panel, self.n_seeds, 400)
            value, drawn = paired.of("mean")
            performance = Estimate.of_draws(value[0] - value[1], drawn[:, 0] - drawn[:, 1])
            disparity = paired.furthest_behind(0, minus=1)
            truth = abs(self.disparities[0]) - abs(self.disparities[1])
            mean += performance.low <= 0 <= performance.high
            size += disparity.low <= truth <= disparity.high
            below += disparity.high < truth
        return f"| {self.name} | {self.n_seeds} | {mean / n:.3f} | {size / n:.3f} | {below / n:.3f} |"


PAIRS = (
    Pair("PD .05 v .02", (0.05, 0.02), 1),
    *(Pair("PD .05 v .02", (0.05, 0.02), n) for n in (2, 3, 5)),
    *(Pair("PD 0 v 0", (0.0, 0.0), n) for n in (3, 5)),
    *(Pair("PD .05 v 0", (0.05, 0.0), n) for n in (3, 5)),
    Pair("PD .02 v 0", (0.02, 0.0), 5),
    Pair("PD .05 v 0, 6 periods", (0.05, 0.0), 5, n_periods=6),
    Pair("PD .02 v 0, 6 periods", (0.02, 0.0), 5, n_periods=6),
    Pair("PD .05 v 0, seeds alike", (0.05, 0.0), 1, seed_sd=0.0),
)


def main(n: int = 1000, seed: int = 0) -> None:
    """Print the tables."""
    rng = np.random.default_rng(seed)
    headings = (
        "case",
        "PD covered",
        "mean covered",
        "group means covered, least",
        "PD rejected",
        "largest gap rejected",
    )
    print("| " + " | ".join([*headings, "true abs PD", "abs PD", "de-biased", "null mean"]) + " |")
    print("|" + " --- |" * 10)
    for case in CASES:
        print(show(case, n, rng), flush=True)
    print("\n| two methods | seeds | mean covered | abs PD difference covered | interval below the truth |")
    print("|" + " --- |" * 5)
    for pair in PAIRS:
        print(pair.show(max(1, n // 4), rng), flush=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
