"""The sections of tables: choices of λ, running times, and every number."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fairstream.pages.format import NOT_GIVEN, NOT_RUN, counted, number, plain, signed
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import in_order
from fairstream.pages.tables import body, given, group_heading, measured, row, section, table
from fairstream.paper.findings import Choice, Point, Seconds
from fairstream.paper.report.wording import (
    agreement,
    axis_name,
    caption_of,
    dataset_name,
    panel_name,
    panel_rank,
    quantity,
    rank,
)

_CHOICE_COLUMNS = (
    ("Data set · model · metric", "whole"),
    ("Chosen", "n"),
    ("Performance", "n"),
    ("|PD|", "n"),
    ("By the past, t = 1, 2, …", "whole"),
    ("Performance then", "n"),
    ("|PD| then", "n"),
    ("Why, and what was tried", "wide"),
)


def choice_section(choices: Sequence[Choice]) -> Markup:
    """One row per method, data set, model and metric; all values tried are a click away, and printed."""
    note = element(
        "p",
        "The paper chooses per method, data set, model and metric by the results that it then reports. "
        "The columns “by the past” show what is left when each period may use only what earlier periods have shown.",
        class_="note",
    )
    if not choices:
        return section("How λ and γ were chosen", element("p", "Nothing was chosen in these runs."), id_="choices")
    chosen = table(
        caption="Chosen values; performance and |PD| are Task-R's means over the periods",
        columns=_CHOICE_COLUMNS,
        bodies=[_choice_body(method, choices) for method in in_order({choice.method for choice in choices})],
        id_="choice-table",
    )
    return section("How λ and γ were chosen", note, chosen, id_="choices")


def _choice_body(method: str, choices: Sequence[Choice]) -> Markup:
    rows = [_choice_row(choice) for choice in choices if choice.method == method]
    return body(rows, heading=group_heading(method, n_columns=len(_CHOICE_COLUMNS)))


def _choice_row(choice: Choice) -> Markup:
    performance, disparity = choice.tried.get(choice.chosen, (None, None))
    past_performance, past_disparity = choice.past_result or (None, None)
    return row(
        _CHOICE_COLUMNS,
        (
            f"{dataset_name(choice.dataset)} · {choice.model} · {choice.metric}",
            f"{choice.parameter} = {plain(choice.chosen)}",
            _or_dash(performance),
            _or_dash(disparity),
            ", ".join(map(plain, choice.by_the_past)) or "–",
            _or_dash(past_performance),
            _or_dash(past_disparity),
            _tried(choice),
        ),
    )


def _tried(choice: Choice) -> Markup:
    items = [
        element(
            "li",
            element("b", f"{choice.parameter} = {plain(value)}"),
            f": {number(performance)}, |PD| {number(disparity)}",
            " (chosen)" if value == choice.chosen else "",
        )
        for value, (performance, disparity) in sorted(choice.tried.items())
    ]
    about = element("summary", f"{choice.reason} ({len(items)} tried)")
    return element("details", about, element("ul", *items))


def _or_dash(value: float | None) -> str:
    return "–" if value is None else number(value)


_TIME_COLUMNS = (("Method", ""), ("Paper, s", "n"), ("Paper ÷ FADE", "n"), ("Ours, s", "n"), ("Ours ÷ FADE", "n"))

_Times = dict[str, tuple[float | None, float | None]]


def time_table(seconds: Sequence[Seconds]) -> Markup:
    """Seconds per period by data set and model, and their averages as the paper gives them."""
    if not seconds:
        return element("p", "The store holds no running times.", class_="note")
    cases: dict[tuple[str, str], _Times] = {}
    for cell in seconds:
        cases.setdefault((cell.dataset, cell.model), {})[cell.method] = (cell.paper, cell.ours)
    bodies = [_time_body(f"{dataset_name(name)} · {model}", times) for (name, model), times in cases.items()]
    if len(cases) > 1:
        bodies.append(_time_body("Average", _averages(list(cases.values()))))
    return table(caption="Seconds per period", columns=_TIME_COLUMNS, bodies=bodies, id_="time-table")


def _time_body(title: str, times: _Times) -> Markup:
    fade = times.get("FADE", (None, None))
    rows = []
    for method in in_order(times):
        paper, ours = times[method]
        cells = (_seconds(paper, NOT_GIVEN), _ratio(paper, fade[0]), _seconds(ours, NOT_RUN), _ratio(ours, fade[1]))
        rows.append(row(_TIME_COLUMNS, (method, *cells)))
    return body(rows, heading=group_heading(title, n_columns=len(_TIME_COLUMNS)))


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


_NUMBER_COLUMNS = (
    ("Figure", ""),
    ("Panel", ""),
    ("Quantity", ""),
    ("Series", ""),
    ("At", "n"),
    ("Paper", "n"),
    ("Ours", "n"),
    ("Difference", "n"),
    ("Seed sd", "n"),
    ("Agrees?", ""),
)
_ICONS = {"agrees": "✓ ", "differs": "✗ "}


def numbers_section(points: Sequence[Point]) -> Markup:
    """The table, and above it what to show of it (where scripts run)."""
    series = in_order({point.place.series for point in points})
    ordered = sorted(
        points,
        key=lambda point: (
            rank(point.place.figure),
            point.place.figure,
            panel_rank(point.place),
            series.index(point.place.series),
            point.place.x or 0.0,
        ),
    )
    numbers = table(
        caption="Each number of the paper's figures, and ours",
        columns=_NUMBER_COLUMNS,
        bodies=[body(map(_number_row, ordered))],
        id_="number-table",
        class_="tall",
    )
    return section("All numbers", _filter(ordered), numbers, id_="numbers")


def _filter(points: Sequence[Point]) -> Markup:
    labels = dict.fromkeys(point.place.figure for point in points)
    options = [element("option", f"{caption_of(label).title} ({label})", value=label) for label in labels]
    every = element("option", "all figures", value="")
    return element(
        "form",
        element("label", "Figure ", element("select", every, *options, name="figure")),
        element("label", element("input", type="checkbox", name="differs"), " only what differs"),
        element("label", "Text ", element("input", type="search", name="text", placeholder="ModCloth FADE")),
        element("output", f"{counted(len(points), 'number')}", name="count", aria_live="polite"),
        id="number-filter",
        hidden=True,
    )


def _number_row(point: Point) -> Markup:
    place, word = point.place, agreement(point)
    at = "–" if place.x is None else f"{axis_name(place.x_name)} {plain(place.x)}"
    cells = (
        place.figure,
        panel_name(place),
        quantity(place),
        place.series,
        at,
        given(point.paper),
        measured(point.ours),
        "–" if point.difference is None else signed(point.difference),
        "–" if point.sd is None else number(point.sd),
        f"{_ICONS.get(word, '')}{word}",
    )
    return row(
        _NUMBER_COLUMNS,
        cells,
        data_figure=place.figure,
        data_told=word,
        class_="differs" if word == "differs" else None,
    )
