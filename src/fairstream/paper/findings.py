"""The results of a reproduction in the form a report is made from, and the paper's own numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

Verdict = Literal["holds", "holds in part", "cannot be told", "does not hold", "not tested"]


@dataclass(frozen=True)
class Place:
    """Where in the paper a number stands: a panel of a figure, a series in it, and a point of the series."""

    figure: str  # the paper's label, such as fig:trunc-trend-taskR
    task: str  # R or N
    dataset: str
    model: Literal["MF", "NCF"]
    metric: str  # NDCG@20 or F1@20
    series: str  # a method, or a group of users where the figure is about one method
    x_name: str  # period, lambda, epochs, tau, mu; `method` in a trade-off, where the series is the point
    x: float | None  # None in a trade-off
    y_name: str  # performance or abs_pd


@dataclass(frozen=True)
class Point:
    """One number of the paper and ours."""

    place: Place
    paper: float | None  # None where the source does not give the number
    ours: float | None  # the mean over seeds; None without runs
    sd: float | None  # the standard deviation between seeds; None with fewer than two
    n_seeds: int
    run_ids: tuple[str, ...]  # the stored runs that it comes from
    shortened: str | None = None
    """How these runs are shorter than the paper's, in words; such numbers are not compared."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper

    @property
    def tolerance(self) -> float:
        """max(0.015, 2 standard deviations between seeds)."""
        return max(0.015, 2 * (self.sd or 0.0))

    @property
    def agrees(self) -> bool | None:
        """Whether ours is within the tolerance; None without a number to compare, or from shortened runs."""
        is_comparable = self.difference is not None and self.shortened is None
        return abs(self.difference or 0.0) <= self.tolerance if is_comparable else None


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and our verdict."""

    question: str  # RQ1 … RQ6
    text: str  # the claim in our words, with the paper's number in it
    paper: float | None
    ours: float | None
    interval: tuple[float, float] | None  # 95 %
    unit: Literal["%", "×", ""]
    verdict: Verdict
    reason: str  # one sentence: the evidence for the verdict


NOT_IN_STORE = "the runs are not in this store"


def graded(whole: bool, partly: bool) -> Verdict:
    """Return the verdict on a claim that holds in whole, in part, or not."""
    return "holds" if whole else "holds in part" if partly else "does not hold"


@dataclass(frozen=True)
class Seconds:
    """One cell of the time table: seconds per period."""

    dataset: str
    model: Literal["MF", "NCF"]
    method: str
    paper: float | None
    ours: float | None


@dataclass(frozen=True)
class Choice:
    """How λ (γ for Adver) was chosen for one method, data set, model and metric."""

    method: str
    dataset: str
    model: Literal["MF", "NCF"]
    metric: str
    parameter: str
    tried: Mapping[float, tuple[float, float]]
    """Each value tried → (mean performance, mean |PD|) of Task-R over the periods."""
    chosen: float
    reason: str
    by_the_past: tuple[float, ...]  # the value chosen in each period t = 1, 2, … by past results alone
    past_result: tuple[float, float] | None
    """(mean performance, mean |PD|) of Task-R with these values."""


@dataclass(frozen=True)
class Findings:
    """Everything that a report shows."""

    protocol: str
    seeds: tuple[int, ...]
    quick: bool
    points: tuple[Point, ...]
    claims: tuple[Claim, ...]
    seconds: tuple[Seconds, ...]
    choices: tuple[Choice, ...]
    data: tuple[Mapping[str, Any], ...]  # of each data set: name, sha256, n_events, n_users, n_items, groups
    versions: Mapping[str, str]
    command: str  # the command that runs it again
    n_runs: int
    n_missing: int  # runs of the plan that the store does not have (yet)
    recovery: tuple[Mapping[str, Any], ...] = ()
    """How well a fresh classifier recovers the group: dataset, model, method, weight, balanced accuracy."""
    notes: tuple[str, ...] = ()


_WHERE = ("figure", "task", "dataset", "model", "metric", "series")
_METHODS = ("Retrain", "Retrain-Fair", "Adver", "Rerank", "Finetune", "FADE")
TIMES: dict[tuple[str, str], dict[str, float]] = {
    part: dict(zip(_METHODS, seconds, strict=True))
    for part, seconds in {
        ("movielens-1m", "MF"): (1373.17, 1401.18, 55.16, 132.46, 2.57, 4.08),
        ("movielens-1m", "NCF"): (1381.59, 1488.5, 61.66, 420.54, 5.07, 5.93),
        ("modcloth", "MF"): (154.22, 163.12, 4.01, 250.75, 0.79, 0.93),
        ("modcloth", "NCF"): (188.58, 242.29, 4.01, 344.51, 1.15, 1.26),
    }.items()
}
"""Seconds per period (Table 2, one V100)."""


@cache
def published_numbers() -> dict[Place, float]:
    """Each number of the paper's figures by its place; a point of a trade-off has two places."""
    numbers: dict[Place, float] = {}
    with files(__package__).joinpath("figures.csv").open() as file:
        for row in csv.DictReader(file):
            where: dict[str, Any] = {name: row[name] for name in _WHERE}
            if row["kind"] == "tradeoff":
                for axis in ("x", "y"):
                    place = Place(**{**where, "x_name": "method", "x": None, "y_name": row[f"{axis}_name"]})
                    numbers[place] = float(row[axis])
            else:
                place = Place(**{**where, "x_name": row["x_name"], "x": float(row["x"]), "y_name": row["y_name"]})
                numbers[place] = float(row["y"])
    return numbers
