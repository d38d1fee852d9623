"""How numbers and names are written for a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.experiment.paper.findings import Claim, Place, Point

NOT_GIVEN = "not given"
"""Where the paper has no number."""
NOT_RUN = "not run"
"""Where the store has no runs for a number."""

_DATASETS = {"movielens-1m": "MovieLens-1M", "movielens-100k": "MovieLens-100K", "modcloth": "ModCloth"}
_AXES = {"period": "period", "lambda": "λ", "epochs": "epochs", "tau": "τ", "mu": "μ"}


def number(value: float) -> str:
    """Four decimals, with a real minus.

    >>> number(-0.0213)
    '−0.0213'
    """
    return f"{value:.4f}".replace("-", "−")


def signed(value: float) -> str:
    """Four decimals and a sign."""
    return f"{value:+.4f}".replace("-", "−")


def plain(value: float) -> str:
    """As short as the number is: a hyperparameter's value or a period.

    >>> plain(2.0), plain(0.5)
    ('2', '0.5')
    """
    return f"{value:g}".replace("-", "−")


def share(part: int, whole: int) -> str:
    """A share in percent, or a dash where there is nothing to take a share of."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def counted(count: int, noun: str) -> str:
    """A count and what is counted.

    >>> counted(1, "claim"), counted(2000, "number")
    ('1 claim', '2,000 numbers')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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


def anything(value: Any) -> str:
    """A value of an open record: numbers as above, what is nested as a list.

    >>> anything({"M": 4331, "F": 1709}), anything(0.51234), anything(None)
    ('M: 4,331, F: 1,709', '0.5123', '–')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {anything(inner)}" for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(anything(inner) for inner in value)
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else number(float(value))
