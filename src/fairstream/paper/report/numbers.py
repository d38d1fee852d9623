"""Each number of the paper's figures beside ours, with a filter."""

from __future__ import annotations

from collections.abc import Sequence

from fairstream.pages.format import counted, number, plain, signed
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import in_order
from fairstream.pages.tables import body, given, measured, row, section, table
from fairstream.paper.findings import Point
from fairstream.paper.report.captions import caption_of, panel_rank, rank
from fairstream.paper.report.wording import agreement, axis_name, panel_name, quantity

_COLUMNS = (
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
        columns=_COLUMNS,
        bodies=[body(map(_row, ordered))],
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


def _row(point: Point) -> Markup:
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
        _COLUMNS, cells, data_figure=place.figure, data_told=word, class_="differs" if word == "differs" else None
    )
