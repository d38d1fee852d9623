"""How numbers and names are written, and what each question and figure of the paper shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairstream.pages.format import NOT_GIVEN, NOT_RUN, number
from fairstream.paper.findings import Claim, Place, Point

_DATASETS = {"movielens-1m": "MovieLens-1M", "movielens-100k": "MovieLens-100K", "modcloth": "ModCloth"}
_AXES = {"period": "period", "lambda": "λ", "epochs": "epochs", "tau": "τ", "mu": "μ"}


def dataset_name(dataset: str) -> str:
    """The data set as its makers write it."""
    return _DATASETS.get(dataset, dataset)


def axis_name(x_name: str) -> str:
    """The paper's symbol, where it has one."""
    return _AXES.get(x_name, x_name)


def quantity(place: Place) -> str:
    """What the number measures: the metric itself, or the size of its disparity."""
    return f"|PD| of {place.metric}" if place.y_name == "abs_pd" else place.metric


def panel_name(place: Place) -> str:
    """What a number was measured on.

    >>> panel_name(Place("fig:params", "R", "modcloth", "MF", "F1@20", "FADE", "tau", 3.0, "performance"))
    'ModCloth · MF · Task-R'
    """
    return f"{dataset_name(place.dataset)} · {place.model} · Task-{place.task}"


def claim_value(claim: Claim, value: float) -> str:
    """A claim's value in its unit: percent and factors as a text gives them, all else with four decimals."""
    if claim.unit:
        return f"{value:,.2f} {claim.unit}".replace("-", "−")
    return number(value)


def agreement(point: Point) -> str:
    """One word for whether a point agrees, or why that cannot be said."""
    if point.shortened is not None and point.ours is not None:
        return f"shortened: {point.shortened}"
    if point.agrees is None:
        return NOT_RUN if point.ours is None else NOT_GIVEN
    return "agrees" if point.agrees else "differs"


QUESTIONS = {
    "RQ1": "What does learning from new data do to the models?",
    "RQ2": "What do the fairness loss and the fine-tuning of FADE contribute?",
    "RQ3": "Does FADE do better than other fairness-aware methods?",
    "RQ4": "How much time does FADE take?",
    "RQ5": "How good is Differentiable Hit beside other soft ranking metrics?",
    "RQ6": "How much depends on the hyperparameters?",
}
SHORT = {
    "RQ1": "New data",
    "RQ2": "Fairness loss, fine-tuning",
    "RQ3": "Competitors",
    "RQ4": "Time",
    "RQ5": "Soft ranking",
    "RQ6": "Hyperparameters",
}
"""What each question is about, for a list of contents."""


@dataclass(frozen=True)
class Caption:
    """A figure of the paper: where it belongs, and what it shows."""

    label: str
    question: str
    title: str
    reading: str


_GROUPS = (
    "Each line is what FADE does for one group of users, the mean over the periods; the gap between the lines is PD."
)
_TRADEOFF = "Means over the periods. Better is to the right (performance) and down (|PD|)."
_LOWER = "Lower is fairer."


def _parameter(label: str, title: str, task: Literal["R", "N"]) -> Caption:
    return Caption(f"appenfig:trunc-param-{label}-task{task}", "RQ6", f"{title}, Task-{task}", _GROUPS)


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
        "The periods after the sixth show how long fine-tuning goes on well.",
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
        _parameter(label, title, task)
        for label, title in (
            ("lambda", "The weight λ of the fairness loss"),
            ("tepoch", "Epochs of an update"),
            ("tau", "The temperature τ of Differentiable Hit"),
            ("numneg", "The number μ of negatives in the fairness loss"),
        )
        for task in ("R", "N")
    ),
)
_BY_LABEL = {caption.label: caption for caption in _CAPTIONS}

TRADEOFFS = ("fig:trunc-tradeoff-taskR", "appenfig:trunc-tradeoff-taskN")
"""The figures that RQ1, RQ2 and RQ3 all look at."""


def caption_of(label: str) -> Caption:
    """What is known of a figure; one that the paper does not have belongs to no question."""
    return _BY_LABEL.get(label, Caption(label, "", label, "The paper has no figure of this label."))


def rank(label: str) -> int:
    """Where a figure stands on the page; unknown ones come last."""
    order = list(_BY_LABEL)
    return order.index(label) if label in _BY_LABEL else len(order)


def panel_rank(place: Place) -> tuple[int, str, str, int, str, str]:
    """Panels as in the paper: MovieLens before ModCloth, MF before NCF, NDCG before F1, performance before |PD|."""
    return (
        ("movielens-1m", "modcloth").index(place.dataset) if place.dataset in ("movielens-1m", "modcloth") else 2,
        place.dataset,
        place.model,
        ("NDCG@20", "F1@20").index(place.metric) if place.metric in ("NDCG@20", "F1@20") else 2,
        place.x_name,
        "" if place.y_name == "performance" else place.y_name,
    )
