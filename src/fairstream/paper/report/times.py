"""The running times, and how many times FADE's they are."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fairstream.pages.format import NOT_GIVEN, NOT_RUN
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import in_order
from fairstream.pages.tables import body, group_heading, row, table
from fairstream.paper.findings import Seconds
from fairstream.paper.report.wording import dataset_name

_COLUMNS = (("Method", ""), ("Paper, s", "n"), ("Paper ÷ FADE", "n"), ("Ours, s", "n"), ("Ours ÷ FADE", "n"))

_Times = dict[str, tuple[float | None, float | None]]


def time_table(seconds: Sequence[Seconds]) -> Markup:
    """Seconds per period by data set and model, and their averages as the paper gives them."""
    if not seconds:
        return element("p", "The store holds no running times.", class_="note")
    cases: dict[tuple[str, str], _Times] = {}
    for cell in seconds:
        cases.setdefault((cell.dataset, cell.model), {})[cell.method] = (cell.paper, cell.ours)
    bodies = [_body(f"{dataset_name(name)} · {model}", times) for (name, model), times in cases.items()]
    if len(cases) > 1:
        bodies.append(_body("Average", _averages(list(cases.values()))))
    return table(caption="Seconds per period", columns=_COLUMNS, bodies=bodies, id_="time-table")


def _body(title: str, times: _Times) -> Markup:
    fade = times.get("FADE", (None, None))
    rows = []
    for method in in_order(times):
        paper, ours = times[method]
        cells = (_seconds(paper, NOT_GIVEN), _ratio(paper, fade[0]), _seconds(ours, NOT_RUN), _ratio(ours, fade[1]))
        rows.append(row(_COLUMNS, (method, *cells)))
    return body(rows, heading=group_heading(title, n_columns=len(_COLUMNS)))


def _averages(cases: Sequence[_Times]) -> _Times:
    """An average over all cases, or none: of some cases only it would not be comparable."""
    methods = {method for times in cases for method in times}
    return {method: (_mean(cases, method, 0), _mean(cases, method, 1)) for method in methods}


def _mean(cases: Sequence[_Times], method: str, side: int) -> float | None:
    values = [times.get(method, (None, None))[side] for times in cases]
    there = [value for value in values if value is not None]
    return fmean(there) if len(there) == len(values) else None


def _seconds(value: float | None, missing: str) -> str:
    return missing if value is None else f"{value:,.4f}"


def _ratio(value: float | None, fade: float | None) -> str:
    return "–" if value is None or not fade else f"{value / fade:,.2f} ×"
