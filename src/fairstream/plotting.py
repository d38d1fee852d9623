"""Altair charts of results, which the methods `plot` return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.display import import_optional

COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#009E73", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow and black."""
SHAPES = ("circle", "square", "diamond", "cross", "triangle-down", "triangle-up")
_WIDTH, _HEIGHT = 420, 260
Rows = Sequence[Mapping[str, Any]]


def altair() -> Any:
    """Return altair, which draws the charts."""
    return import_optional("altair", "plot", "fairstream[report]")


def area_chart(rows: Rows, groups: Sequence[str], *, is_moment: bool) -> Any:
    """Draw the events of each group over time: rows of `time`, `events`, `group`."""
    alt = altair()
    return (
        alt.Chart(alt.Data(values=rows), width=_WIDTH, height=_HEIGHT // 2)
        .mark_area(interpolate="step-after")
        .encode(alt.X("time:T" if is_moment else "time:Q"), alt.Y("events:Q"), _colour(alt, "group", groups))
    )


def bar_chart(rows: Rows, title: str) -> Any:
    """Draw a value with its interval, and what is attainable, for each group.

    Rows of `group`, `value`, `low`, `high`, `attainable`.
    """
    alt, groups = altair(), [row["group"] for row in rows]
    base = alt.Chart(alt.Data(values=rows)).encode(alt.Y("group:N", sort=groups, title=None))
    bars = base.mark_bar(height=14).encode(alt.X("value:Q", title=title), _colour(alt, "group", groups))
    interval = base.transform_filter("isValid(datum.low)").mark_rule()
    best = base.transform_filter("isValid(datum.attainable)").mark_tick(thickness=3, size=22, color="black")
    drawn = bars + interval.encode(alt.X("low:Q", title=title), alt.X2("high:Q")) + best.encode(alt.X("attainable:Q"))
    return drawn.properties(width=_WIDTH)


def line_chart(rows: Rows, title: str = "", y_title: str = "", series: str = "group") -> Any:
    """Draw the value of each series by period: rows of `t`, `value` and the field `series`."""
    alt, names = altair(), list(dict.fromkeys(row[series] for row in rows))
    base = alt.Chart(alt.Data(values=rows), title=title).encode(
        alt.X("t:O", title="period", axis=alt.Axis(labelAngle=0)),
        alt.Y("value:Q", title=y_title or None, scale=alt.Scale(zero=False)),
        _colour(alt, series, names),
        tooltip=[alt.Tooltip(f"{series}:N"), alt.Tooltip("t:O", title="period"), alt.Tooltip("value:Q", format=".4f")],
    )
    points = base.mark_point(filled=True, size=50, opacity=1).encode(_shape(alt, series, names))
    return (base.mark_line() + points).properties(width=_WIDTH, height=_HEIGHT)


def tradeoff_chart(
    rows: Rows, x_title: str, y_title: str, *, kinds: Sequence[str], colours: Sequence[str] = COLOURS, title: str = ""
) -> Any:
    """Draw quality against disparity with intervals: rows of `kind`, `x`, `x_low`, `x_high`, `y` and so on, `label`."""
    alt = altair()
    base = alt.Chart(alt.Data(values=rows), title=title).encode(_colour(alt, "kind", kinds, colours))
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(zero=False))
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False))
    shown = [alt.Tooltip(f"{field}:Q", title=name, format=".4f") for field, name in (("y", y_title), ("x", x_title))]
    rules = base.mark_rule(opacity=0.6)
    wide = rules.transform_filter("isValid(datum.x_low)").encode(alt.X("x_low:Q", title=x_title), alt.X2("x_high:Q"), y)
    tall = rules.transform_filter("isValid(datum.y_low)").encode(x, alt.Y("y_low:Q", title=y_title), alt.Y2("y_high:Q"))
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x, y, _shape(alt, "kind", kinds), tooltip=[alt.Tooltip("kind:N", title=""), *shown]
    )
    names = base.transform_filter("isValid(datum.label)").mark_text(dy=-12).encode(x, y, alt.Text("label:N"))
    return (wide + tall + points + names).properties(width=_WIDTH, height=_HEIGHT)


def _colour(alt: Any, field: str, values: Sequence[str], colours: Sequence[str] = COLOURS) -> Any:
    return alt.Color(f"{field}:N", title=None, scale=_scale(alt, values, colours))


def _shape(alt: Any, field: str, values: Sequence[str]) -> Any:
    return alt.Shape(f"{field}:N", title=None, scale=_scale(alt, values, SHAPES))


def _scale(alt: Any, values: Sequence[str], looks: Sequence[str]) -> Any:
    """Give each value a colour or a shape, in order."""
    return alt.Scale(domain=list(values), range=[looks[place % len(looks)] for place in range(len(values))])
