"""The page of a reproduction: verdicts, figures, agreement, all numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fairstream.files import write_file
from fairstream.pages.charts import Chart, Charts
from fairstream.pages.rendering import render, require_report
from fairstream.paper.findings import Claim, Findings, Point, Seconds
from fairstream.paper.report import wording
from fairstream.paper.report.figures import Figure, described, figures_of, in_order, rows_of, spec_of, styles_of
from fairstream.paper.report.wording import CAPTIONS, NOT_GIVEN, NOT_RUN, QUESTIONS, agreeing, dataset_name, share
from fairstream.text import MISSING, anything, number


def write_report(findings: Findings, path: Path) -> None:
    """Write one HTML file with all tables and figures, atomically; it needs no network."""
    require_report()
    write_file(path, page_of(findings).encode())


def page_of(findings: Findings) -> str:
    """Return the page."""
    charts = Charts()
    claims: dict[str, list[Claim]] = {question: [] for question in QUESTIONS}
    for claim in sorted(findings.claims, key=lambda claim: claim.question):
        claims.setdefault(claim.question, []).append(claim)
    blocks = [_block(figure, charts) for figure in figures_of(findings.points)]
    return render(
        "paper.html",
        "fairstream.paper.report",
        title="User-side fairness in dynamic recommender systems: the paper's results and ours",
        findings=findings,
        words=wording,
        claims=claims,
        blocks=blocks,
        times=_times(findings.seconds),
        agreement=_agreement([point for point in findings.points if point.paper is not None]),
        points=_ordered(findings.points),
        choices={
            name: [choice for choice in findings.choices if choice.method == name]
            for name in in_order({choice.method for choice in findings.choices})
        },
        recovery=_records([{**about, "dataset": dataset_name(about["dataset"])} for about in findings.recovery]),
        data=_records([{**about, "name": dataset_name(str(about.get("name", "")))} for about in findings.data]),
        versions=_records([{"what": name, "version": each} for name, each in sorted(findings.versions.items())]),
        charts=charts,
    )


def _block(figure: Figure, charts: Charts) -> dict[str, Any]:
    """Return a figure for the template, with its charts added to `charts`."""
    styles, panels = styles_of(figure.series), []
    for position, panel in enumerate(figure.panels):
        spec = spec_of(panel, styles) if panel.paper or panel.ours else {}
        sides: dict[str, Chart | None] = {}
        for whose, marks in (("Paper", panel.paper), ("Ours", panel.ours)):
            if whose == "Ours" or figure.has_paper:
                id_ = f"{figure.anchor}-{position}-{whose.lower()}"
                label = described(panel, marks, whose=whose)
                sides[whose] = charts.add(id_, spec, rows_of(marks), label) if marks else None
        panels.append((panel, sides))
    return {"figure": figure, "styles": styles, "panels": panels}


# ── tables ───────────────────────────────────────────────────────────────────────────────


def _agreement(points: Sequence[Point]) -> dict[str, list[list[str]]]:
    """Return how many numbers agree by figure, by series, and by quantity, each with a total."""
    labels = sorted({point.place.figure for point in points}, key=wording.rank)
    groups = {
        "figure": {CAPTIONS[label].title: ("figure", label) for label in labels},
        "series": {name: ("series", name) for name in in_order({point.place.series for point in points})},
        "quantity": {"performance": ("y_name", "performance"), "|PD|": ("y_name", "abs_pd")},
    }
    tables = {}
    for what, by in groups.items():
        rows = [_counts(title, [p for p in points if getattr(p.place, key) == v]) for title, (key, v) in by.items()]
        tables[what] = [*rows, _counts("all", points)]
    return tables


def _counts(name: str, points: Sequence[Point]) -> list[str]:
    agree, compared = agreeing(points)
    sizes = [abs(point.difference) for point in points if point.difference is not None]
    missing = sum(point.ours is None for point in points)
    counts = (f"{len(points):,}", f"{compared:,}", f"{agree:,}", share(agree, compared))
    return [name, *counts, number(median(sizes)) if sizes else MISSING, f"{missing:,}"]


_Times = dict[str, tuple[float | None, float | None]]


def _times(seconds: Sequence[Seconds]) -> dict[str, list[list[str]]]:
    """Return seconds per period by data set and model, and their averages as the paper gives them."""
    cases: dict[str, _Times] = {}
    for cell in seconds:
        cases.setdefault(f"{dataset_name(cell.dataset)} · {cell.model}", {})[cell.method] = (cell.paper, cell.ours)
    if len(cases) > 1:
        methods = {method for times in cases.values() for method in times}
        cases["Average"] = {method: (_mean(cases, method, 0), _mean(cases, method, 1)) for method in methods}
    return {title: [_time_row(method, times) for method in in_order(times)] for title, times in cases.items()}


def _time_row(method: str, times: _Times) -> list[str]:
    cells = [method]
    for value, fade, missing in zip(times[method], times.get("FADE", (None, None)), (NOT_GIVEN, NOT_RUN), strict=True):
        cells.append(missing if value is None else f"{value:,.4f}")
        cells.append(MISSING if value is None or not fade else f"{value / fade:,.2f} ×")
    return cells


def _mean(cases: Mapping[str, _Times], method: str, side: int) -> float | None:
    """Return the average over all cases; None if one is missing, since averages of some are not comparable."""
    values = [times.get(method, (None, None))[side] for times in cases.values()]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _ordered(points: Sequence[Point]) -> list[Point]:
    series = in_order({point.place.series for point in points})
    return sorted(
        points,
        key=lambda point: (
            wording.rank(point.place.figure),
            wording.panel_rank(point.place),
            series.index(point.place.series),
            point.place.x or 0.0,
        ),
    )


def _records(records: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return the columns and the rows of JSON records: a column for each key of any record."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    columns = []
    for key in keys:
        is_number = all(isinstance(record.get(key), int | float) for record in records)
        columns.append((key.replace("_", " ").removeprefix("n "), "n" if is_number else ""))
    return columns, [[anything(record.get(key)) for key in keys] for record in records]
