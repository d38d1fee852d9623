"""Names, captions and verdicts: the words of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairstream.paper.findings import Claim, Findings, Place, Point, Verdict
from fairstream.paper.settings import DATASETS, METRICS
from fairstream.text import MISSING, counted, percent, sentence

NOT_GIVEN = "not given"  # the paper has no such number
NOT_RUN = "not run"  # the store has no runs for the number

_DATASETS = {"movielens-1m": "MovieLens-1M", "movielens-100k": "MovieLens-100K", "modcloth": "ModCloth"}
AXES = {"period": "period", "lambda": "λ", "epochs": "epochs", "tau": "τ", "mu": "μ"}  # the paper's symbols


def dataset_name(dataset: str) -> str:
    """Return the proper name of a data set."""
    return _DATASETS.get(dataset, dataset)


def quantity(place: Place) -> str:
    """Return what a number measures: the metric, or the size of its disparity."""
    return f"|PD| of {place.metric}" if place.y_name == "abs_pd" else place.metric


QUESTIONS = {
    "RQ1": "What does learning from new data do to the models?",
    "RQ2": "What do the fairness loss and the fine-tuning of FADE contribute?",
    "RQ3": "Does FADE do better than other fairness-aware methods?",
    "RQ4": "How much time does FADE take?",
    "RQ5": "How good is Differentiable Hit compared with other soft ranking metrics?",
    "RQ6": "How much depends on the hyperparameters?",
}


@dataclass(frozen=True)
class Caption:
    """A figure of the paper: its question, its title, and how to read it."""

    label: str
    question: str
    title: str
    reading: str


_GROUPS = (
    "Each line is what FADE does for one group of users, the mean over the periods; the gap between the lines is PD."
)
_TRADEOFF = "Means over the periods. Better is to the right (performance) and down (|PD|)."
_LOWER = "Lower is fairer."


_CAPTIONS = (
    Caption(
        "fig:observation",
        "RQ1",
        "Performance and disparity over time",
        "New data keeps a model useful (performance, higher is better); |PD| says if it stays fair (lower is fairer).",
    ),
    Caption("fig:trunc-tradeoff-taskR", "RQ1", "Performance against disparity, all methods, Task-R", _TRADEOFF),
    Caption("appenfig:trunc-tradeoff-taskN", "RQ1", "Performance against disparity, all methods, Task-N", _TRADEOFF),
    Caption("fig:trunc-trend-taskR", "RQ2", "Disparity by period, Task-R", _LOWER),
    Caption("appenfig:trunc-trend-taskN", "RQ2", "Disparity by period, Task-N", _LOWER),
    Caption(
        "appenfig:full-trend-perf-taskR",
        "RQ2",
        "Performance over all periods, Task-R",
        "The periods after the sixth show how long fine-tuning works well.",
    ),
    *(
        Caption(
            f"appenfig:trunc-trend-perf-task{task}", "RQ2", f"Performance by period, Task-{task}", "Higher is better."
        )
        for task in ("R", "N")
    ),
    Caption("appenfig:trunc-softrank-taskR", "RQ5", "FADE with three soft ranking metrics, Task-R", _TRADEOFF),
    Caption("appenfig:trunc-softrank-taskN", "RQ5", "FADE with three soft ranking metrics, Task-N", _TRADEOFF),
    Caption("fig:scaling", "RQ6", "The weight λ of the fairness loss, MovieLens, MF", _GROUPS),
    Caption("fig:params", "RQ6", "Epochs of an update and temperature τ, MovieLens, MF", _GROUPS),
    *(
        Caption(f"appenfig:trunc-param-{label}-task{task}", "RQ6", f"{title}, Task-{task}", _GROUPS)
        for label, title in (
            ("lambda", "The weight λ of the fairness loss"),
            ("tepoch", "Epochs of an update"),
            ("tau", "The temperature τ of Differentiable Hit"),
            ("numneg", "The number μ of negatives in the fairness loss"),
        )
        for task in ("R", "N")
    ),
)
CAPTIONS = {caption.label: caption for caption in _CAPTIONS}

TRADEOFFS = ("fig:trunc-tradeoff-taskR", "appenfig:trunc-tradeoff-taskN")
"""The figures that RQ1, RQ2 and RQ3 all look at."""


def rank(label: str) -> int:
    """Return the position of a figure on the page."""
    return list(CAPTIONS).index(label)


def panel_rank(place: Place) -> tuple[int, str, int, str, str]:
    """Order panels as the paper does: MovieLens before ModCloth, MF before NCF, NDCG before F1, quality before |PD|."""
    return (
        DATASETS.index(place.dataset),
        place.model,
        METRICS.index(place.metric),
        place.x_name,
        "" if place.y_name == "performance" else place.y_name,
    )


VERDICTS: dict[Verdict, tuple[str, str]] = {
    "holds": ("✓", "hold"),
    "holds in part": ("◐", "hold in part"),
    "cannot be told": ("?", "cannot be told"),
    "does not hold": ("✗", "do not hold"),
    "not tested": ("○", "not tested"),
}
"""The icon of each verdict, and its plural."""


def agreeing(points: Iterable[Point]) -> tuple[int, int]:
    """Return how many points agree, and how many were compared."""
    verdicts = [point.agrees for point in points if point.agrees is not None]
    return sum(verdicts), len(verdicts)


def counts_of(claims: Sequence[Claim]) -> str:
    """Return how many claims got which verdict.

    >>> counts_of([Claim("RQ1", "…", 1.0, 1.0, None, "%", "holds", "…")])
    'of 1 claim, 1 holds'
    """
    counts = Counter(claim.verdict for claim in claims)
    if not counts:
        return "no claims were judged"
    words = [f"{n} {kind if n == 1 else plural}" for kind, (_, plural) in VERDICTS.items() if (n := counts[kind])]
    return f"of {counted(len(claims), 'claim')}, {', '.join(words)}"


def in_short(findings: Findings) -> str:
    """Return the summary as one sentence: agreement, if the protocol allows it, and verdicts."""
    agree, compared = agreeing(findings.points)
    claims = counts_of(findings.claims)
    if findings.protocol != "paper" or not compared:
        return sentence(claims)
    numbers = f"Of {counted(compared, 'number')} compared with the paper's, {agree:,} ({share(agree, compared)}) agree"
    return f"{numbers}; {claims}."


def share(part: int, whole: int) -> str:
    """Return a share in percent."""
    return percent(part / whole) if whole else MISSING
