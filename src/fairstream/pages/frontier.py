"""A frontier as a picture and as a page: quality against the gap, and what each group gets at each level."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast, get_args

from fairstream.errors import ConfigurationError
from fairstream.experiments import Frontier, FrontierLevel
from fairstream.experiments.frontier import FRONTIER_TASKS
from fairstream.pages.charts import CONFIG, Charts, Style, axis_range, draw, palette
from fairstream.pages.rendering import render, require_report
from fairstream.pages.score_tables import change_table
from fairstream.plotting import altair
from fairstream.text import counted, number, signed

PictureFormat = Literal["png", "svg", "html"]
_EVERYONE = "everyone"
_MAX_LINES = 6
_COLOURS = {"recommended": "#009E73", "on the Pareto front": "#0072B2", "behind it": "#767676"}
_WIDTH, _HEIGHT, _FONT_SIZE = 380, 300, 11


def picture_format(path: Path) -> PictureFormat:
    """Return the format of a picture by the name of its file.

    >>> picture_format(Path("frontier.svg"))
    'svg'
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in get_args(PictureFormat):
        raise ConfigurationError(f"a picture is a file named .png, .svg or .html, got {path.name!r}")
    return cast("PictureFormat", suffix)


def picture(frontier: Frontier, format: PictureFormat = "png") -> bytes:  # noqa: A002
    """Draw a frontier.

    Parameters
    ----------
    frontier
        The result of `FairRecommender.frontier`.
    format
        PNG (at twice the size, for sharp screens and paper), SVG, or a page with tables that needs no network.

    Raises
    ------
    ConfigurationError
        If the extra `report` is not installed.

    Examples
    --------
    >>> from fairstream import FairRecommender, synthetic_stream
    >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=3000, seed=0)
    >>> rec = FairRecommender("popularity", device="cpu").fit(stream.events, users=stream.users)
    >>> picture(rec.frontier(levels=[1, 5], n_periods=2, n_resamples=20), "svg")[:4]
    b'<svg'

    """
    require_report()
    return _page(frontier).encode() if format == "html" else draw(chart(frontier), format)


def chart(frontier: Frontier) -> dict[str, Any]:
    """Return the picture as a Vega-Lite specification."""
    alt = altair()
    title, subtitle = _titles(frontier)
    both = alt.hconcat(
        _tradeoff(frontier),
        _groups(frontier),
        title=alt.TitleParams(title, subtitle=subtitle, fontSize=14, offset=14),
        spacing=48,
        padding=14,
    ).resolve_scale(color="independent", shape="independent", strokeDash="independent")
    return {**both.to_dict(), "config": {**CONFIG, "background": "white"}}


def _titles(frontier: Frontier) -> tuple[str, str]:
    subtitle = (
        f"{frontier.metric} {FRONTIER_TASKS[frontier.task]}, {frontier.n_users:,} users, "
        f"{counted(len(frontier.period_ends) - 2, 'period')}; 95 % intervals over users"
    )
    return frontier.title, subtitle


def _page(frontier: Frontier) -> str:
    charts, (title, about) = Charts(), _titles(frontier)
    gaps, of_groups = [], []
    for level in frontier.levels:
        name, by_group = frontier.name_of(level), level.scores.by_group
        gaps.append(f"{name}: {frontier.metric} {number(level.quality)}, gap {signed(level.gap.value)}")
        of_groups.append(f"{name}: {', '.join(f'{group} {number(value)}' for group, value in by_group.items())}")
    drawings = {
        "tradeoff": ("Quality and gap", _tradeoff(frontier).to_dict(), gaps),
        "by-group": ("Each group", _groups(frontier).to_dict(), of_groups),
    }
    pictures = []
    for id_, (heading, spec, label) in drawings.items():
        del spec["config"]
        pictures.append(charts.add(id_, spec, spec["data"]["values"], f"{'; '.join(label)}.", title=heading))
    return render(
        "frontier.html",
        title=title,
        about=f"{about}.",
        verdicts=frontier.verdicts(),
        notes=frontier.notes,
        styles=[(name, Style(colour, "circle", (0, 99))) for name, colour in _COLOURS.items()],
        pictures=pictures,
        tables={"level-table": frontier.table(), "change-table": change_table(frontier)},
        charts=charts,
    )


def _tradeoff(frontier: Frontier) -> Any:
    """Draw the gap and the change in quality of each level, with intervals, and a band for the accepted gap."""
    alt = altair()
    rows = [_row(frontier, level) for level in frontier.levels]
    limit, xs = frontier.max_gap, [row[end] for row in rows for end in ("gap_low", "gap_high")] + [0.0]
    if limit is not None:
        xs += [limit, *([-limit] if min(xs) < 0 else [])]
    x_range, y_range = axis_range(xs), axis_range([row[end] for row in rows for end in ("low", "high")] + [0.0])
    _place_labels(rows, x_range, y_range)
    is_pd = len(frontier.groups) == 2
    x_title = f"PD: {frontier.groups[0]} − {frontier.groups[1]}" if is_pd else "gap of the group furthest behind"
    y_title = f"change of everyone's {frontier.metric}, %"
    x_scale, y_scale = (alt.Scale(domain=ends, nice=False, zero=False) for ends in (x_range, y_range))

    def x(field: str = "gap") -> Any:
        return alt.X(f"{field}:Q", title=x_title, axis=alt.Axis(tickCount=6), scale=x_scale)

    def y(field: str = "change") -> Any:
        return alt.Y(f"{field}:Q", title=y_title, scale=y_scale)

    # Marks that do not depend on the data have one row: they would be drawn once for each level.
    base, once = alt.Chart(alt.Data(values=rows)), alt.Chart(alt.Data(values=[{}]))
    kinds = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    colour = alt.Color("kind:N", title=None, scale=kinds)
    zero, rule = once.mark_rule(strokeDash=[3, 3], color="#999"), base.mark_rule(opacity=0.45)
    layers = [
        zero.encode(x=alt.datum(0)),
        zero.encode(y=alt.datum(0)),
        base.mark_line(color="#bbb", strokeWidth=1.2).encode(x(), y(), alt.Order("level:Q")),
        rule.encode(x("gap_low"), alt.X2("gap_high"), y(), colour),
        rule.encode(x(), y("low"), alt.Y2("high"), colour),
        base.mark_point(filled=True, size=70, opacity=1).encode(x(), y(), colour),
        base.mark_text(align="left", baseline="top", fontSize=_FONT_SIZE).encode(
            x("label_x"), y("label_y"), colour, alt.Text("name:N")
        ),
    ]
    if limit is not None:
        left, right = max(-limit, x_range[0]), min(limit, x_range[1])
        band = once.mark_rect(color="#009E73", opacity=0.08)
        layers.insert(0, band.encode(x=alt.datum(left), x2=alt.datum(right)))
    return alt.layer(*layers, data=alt.Data(values=rows), width=_WIDTH, height=_HEIGHT)


def _place_labels(rows: list[dict[str, Any]], x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
    """Give each row the upper left corner of its label, where that covers no point and no other label."""
    (left, right), (bottom, top) = x_range, y_range

    def pixels(row: dict[str, Any]) -> tuple[float, float]:
        return (row["gap"] - left) / (right - left) * _WIDTH, (top - row["change"]) / (top - bottom) * _HEIGHT

    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in map(pixels, rows)]
    for row in rows:
        (x, y), width = pixels(row), 6.5 * len(row["name"])
        corners = [(x + dx, y + dy) for dy in (-16, 6, -30, 20, -44, 34) for dx in (7, -7 - width)]
        boxes = [(a, b, a + width, b + _FONT_SIZE) for a, b in corners if a >= 0 and a + width <= _WIDTH and b >= 0]
        free = [box for box in boxes if not any(_overlap(box, other) for other in taken)]
        box = (free or boxes or [(*corners[0], *corners[0])])[0]
        taken.append(box)
        row["label_x"] = left + box[0] / _WIDTH * (right - left)
        row["label_y"] = top - box[1] / _HEIGHT * (top - bottom)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _groups(frontier: Frontier) -> Any:
    """Draw the quality of everyone and of each group at each level; names stand at the ends of the lines."""
    alt = altair()
    names = [*frontier.groups, _EVERYONE]
    if len(frontier.groups) >= _MAX_LINES:  # those furthest behind and ahead without a lever
        gaps = frontier.baseline.scores.gaps
        ranked = sorted(gaps, key=lambda name: gaps[name].value)
        names = [*ranked[:3], *ranked[-2:], _EVERYONE]
    styles = dict(palette(names))
    rows = [
        {"level": frontier.name_of(level), "group": name, "quality": value}
        for level in frontier.levels
        for name, value in {**level.scores.by_group, _EVERYONE: level.quality}.items()
        if name in styles and value is not None
    ]

    def scale(look: str) -> dict[str, Any]:
        values = [getattr(style, look) for style in styles.values()]
        return {"legend": None, "scale": alt.Scale(domain=names, range=values)}

    base = alt.Chart(alt.Data(values=rows)).encode(
        alt.X("level:O", sort=None, title=frontier.lever, axis=alt.Axis(labelAngle=0)),
        alt.Y("quality:Q", title=f"{frontier.metric} of each group", scale=alt.Scale(zero=False)),
        alt.Color("group:N", **scale("colour")),
    )
    last = f"datum.level === '{frontier.name_of(frontier.levels[-1])}'"
    return alt.layer(
        base.mark_line(strokeWidth=1.6).encode(alt.StrokeDash("group:N", **scale("dash"))),
        base.mark_point(filled=True, size=55, opacity=1).encode(alt.Shape("group:N", **scale("shape"))),
        base.transform_filter(last).mark_text(align="left", dx=9, fontSize=_FONT_SIZE).encode(alt.Text("group:N")),
        data=alt.Data(values=rows),
        width=300,
        height=_HEIGHT,
    )


def _row(frontier: Frontier, level: FrontierLevel) -> dict[str, Any]:
    base, change, gap = frontier.baseline.quality or 1.0, level.quality_change, level.gap
    low, high = gap.interval or (gap.value, gap.value)
    is_front = "on the Pareto front" if level.is_on_front else "behind it"
    return {
        "level": level.value,
        "name": frontier.name_of(level),
        "kind": "recommended" if level is frontier.recommended else is_front,
        "gap": gap.value,
        "gap_low": low,
        "gap_high": high,
        "change": 100 * change.value / base,
        "low": 100 * change.low / base,
        "high": 100 * change.high / base,
    }
