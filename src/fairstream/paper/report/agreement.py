"""How many of the paper's numbers ours agree with, by figure and by series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from fairstream.pages.format import number, share
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import in_order
from fairstream.pages.tables import body, row, section, table
from fairstream.paper.findings import Point
from fairstream.paper.report.captions import caption_of, rank

_COUNTS = (
    ("In the paper", "n"),
    ("Compared", "n"),
    ("Agree", "n"),
    ("Share", "n"),
    ("Median |difference|", "n"),
    ("Not run", "n"),
)


def agreement_section(points: Sequence[Point]) -> Markup:
    """Two tables of counts."""
    given = [point for point in points if point.paper is not None]
    labels = sorted({point.place.figure for point in given}, key=lambda label: (rank(label), label))
    series = in_order({point.place.series for point in given})
    note = element(
        "p",
        "A number agrees when ours, the mean over seeds, is within max(0.015, 2 standard deviations between seeds) "
        "of the paper's. Most |PD|s are small beside 0.015: that they agree says less than that performances do.",
        class_="note",
    )
    return section(
        "Agreement",
        note,
        _counts("figure", labels, given, lambda point: point.place.figure, title=lambda label: caption_of(label).title),
        _counts("series", series, given, lambda point: point.place.series, title=str),
        _counts(
            "quantity",
            ("performance", "abs_pd"),
            given,
            lambda point: point.place.y_name,
            title=lambda name: "|PD|" if name == "abs_pd" else "performance",
        ),
        id_="agreement",
    )


def agreeing(points: Sequence[Point]) -> tuple[int, int]:
    """How many agree, and how many were compared."""
    told = [point.agrees for point in points if point.agrees is not None]
    return sum(told), len(told)


def _counts(
    what: str,
    names: Sequence[str],
    points: Sequence[Point],
    name_of: Callable[[Point], str],
    *,
    title: Callable[[str], str],
) -> Markup:
    columns = ((what.capitalize(), ""), *_COUNTS)
    rows = [row(columns, _cells(title(name), [p for p in points if name_of(p) == name])) for name in names]
    rows.append(row(columns, _cells("all", points), class_="total"))
    return table(caption=f"Agreement by {what}", columns=columns, bodies=[body(rows)], id_=f"agreement-{what}")


def _cells(name: str, points: Sequence[Point]) -> tuple[str, ...]:
    agree, compared = agreeing(points)
    sizes = [abs(point.difference) for point in points if point.difference is not None]
    missing = sum(point.ours is None for point in points)
    counts = (f"{len(points):,}", f"{compared:,}", f"{agree:,}", share(agree, compared))
    return (name, *counts, number(median(sizes)) if sizes else "–", f"{missing:,}")
