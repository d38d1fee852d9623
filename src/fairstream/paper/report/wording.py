"""How numbers and names are written for a reader."""

from __future__ import annotations

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
    if point.agrees is None:
        return NOT_RUN if point.ours is None else NOT_GIVEN
    return "agrees" if point.agrees else "differs"
