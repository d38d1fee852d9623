"""RQ4: how much faster one method's update is than another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from fairstream.evaluation.paired import Interval
from fairstream.evaluation.resampling import Array
from fairstream.experiments.store import Store
from fairstream.paper.findings import Claim, Seconds, graded
from fairstream.paper.timing import measured_seconds
from fairstream.randomness import Randomness

_N_RESAMPLES = 2000

RATIOS = (
    ("RQ4", "Finetune", "Retrain", 323.0),
    ("RQ4", "FADE", "Retrain-Fair", 270.0),
    ("RQ4", "FADE", "Adver", 10.23),
    ("RQ4", "FADE", "Rerank", 94.11),
    ("RQ4", "Finetune", "FADE", 1.27),
    ("RQ4", "Retrain", "Retrain-Fair", 1.06),
    ("RQ5", "FADE", "FADE[NeuralNDCG]", 4.0),
)
"""(question, the faster method, the slower one, how many times faster in the paper)."""
PRICES = {("Finetune", "FADE"), ("Retrain", "Retrain-Fair")}
"""Ratios that the paper wants small: what the fairness loss costs. They hold up to 1.5, in part up to 2."""


def time_claims(store: Store, seconds: Sequence[Seconds]) -> list[Claim]:
    """The ratios of the mean seconds per period, over the data sets and models that both were timed on."""
    measured = measured_seconds(store)
    parts = list(dict.fromkeys((cell.dataset, cell.model) for cell in seconds))
    claims = []
    for question, fast, slow, paper in RATIOS:
        both = [part for part in parts if (*part, fast) in measured and (*part, slow) in measured]
        is_price = (fast, slow) in PRICES
        text = f"{fast}'s update is {paper:g} × faster than {slow}'s"
        if is_price:
            text = f"{slow}'s update takes only {paper:g} × as long as {fast}'s"
        if not both:
            claims.append(Claim(question, text, paper, None, None, "×", "not tested", "no times in this store"))
            continue
        times = {method: [measured[*part, method] for part in both] for method in (fast, slow)}
        ratio = fmean(map(fmean, times[slow])) / fmean(map(fmean, times[fast]))
        found = Interval.of(ratio, _drawn(times, fast, slow))
        reason = f"mean seconds per period over {len(both)} of 4 data sets and models; interval over the timed periods"
        if slow == "Rerank":
            reason += "; ours is the fast solution, not the integer program"
        verdict = graded(ratio <= 1.5, ratio <= 2) if is_price else graded(ratio >= paper / 2, ratio > 1)
        claims.append(Claim(question, text, paper, ratio, (found.low, found.high), "×", verdict, reason))
    return claims


def _drawn(times: Mapping[str, Sequence[Sequence[float]]], fast: str, slow: str) -> Array:
    """The ratio with the timed periods drawn anew."""
    rng = Randomness(0).numpy("timed periods")

    def mean(method: str) -> Array:
        cells = [rng.choice(np.array(cell), (_N_RESAMPLES, len(cell))).mean(axis=1) for cell in times[method]]
        return np.mean(cells, axis=0)

    return mean(slow) / mean(fast)
