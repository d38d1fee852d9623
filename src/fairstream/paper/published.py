"""The paper's own numbers: every point of its figures, and its time table."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import Any

from fairstream.paper.findings import Place

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
