"""The picture of a frontier: quality against the gap, and what each group gets at each level."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from fairstream.errors import ConfigurationError
from fairstream.pages.series import CONFIG, palette
from fairstream.recommender import Frontier, FrontierLevel

PictureFormat = Literal["png", "svg", "html"]
_FORMATS: dict[str, PictureFormat] = {".png": "png", ".svg": "svg", ".html": "html"}
_EVERYONE = "everyone"
_MOST_LINES = 6
TASKS = {"event": "at each event", "next": "in one list a period"}
"""What a list is made for, by the name of the task."""
_COLOURS = {"recommended": "#009E73", "on the Pareto front": "#0072B2", "behind it": "#767676"}
_WIDTH, _HEIGHT, _FONT_SIZE = 380, 300, 11


def picture_format(path: Path) -> PictureFormat:
    """The format of a picture by its file's name.

    >>> picture_format(Path("frontier.svg"))
    'svg'
    """
    if path.suffix.lower() not in _FORMATS:
        raise ConfigurationError(f"a picture is a file named .png, .svg or .html, got {path.name!r}")
    return _FORMATS[path.suffix.lower()]


def picture(frontier: Frontier, format: PictureFormat = "png") -> bytes:  # noqa: A002
    """The picture as PNG (at twice the size, for sharp screens and paper), as SVG, or as a page that needs no network.

    Raises
    ------
    ConfigurationError
        If vl-convert-python, of the extra `report`, is not installed.

    Examples
    --------
    >>> from fairstream import FairRecommender, synthetic_stream
    >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=3000, seed=0)
    >>> rec = FairRecommender("popularity", device="cpu").fit(stream.events, users=stream.users)
    >>> picture(rec.frontier(levels=[1, 4], n_periods=2, n_resamples=20), "svg")[:4]
    b'<svg'

    """
    if find_spec("vl_convert") is None:
        raise ConfigurationError(
            "the picture of a frontier needs vl-convert-python, and it is not installed; install fairstream[report]"
        )
    import vl_convert  # noqa: PLC0415, needs the extra

    spec = chart(frontier)
    if format == "png":
        return vl_convert.vegalite_to_png(spec, scale=2)
    if format == "svg":
        return vl_convert.vegalite_to_svg(spec).encode()
    return vl_convert.vegalite_to_html(spec, bundle=True).encode()


def chart(frontier: Frontier) -> dict[str, Any]:
    """The picture as a Vega-Lite specification."""
    n_periods = len(frontier.period_ends) - 2
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {
            "text": f"What each level of {frontier.lever} costs",
            "subtitle": f"{frontier.metric} {TASKS[frontier.task]}, {frontier.n_users:,} users, {n_periods} periods; "
            f"95 % intervals over users",
            "fontSize": 14,
            "offset": 14,
        },
        "hconcat": [_tradeoff(frontier), _groups(frontier)],
        "resolve": {"scale": dict.fromkeys(("color", "shape", "strokeDash"), "independent")},
        "spacing": 48,
        "config": {**CONFIG, "background": "white"},
        "padding": 14,
    }


def _tradeoff(frontier: Frontier) -> dict[str, Any]:
    """Each level's gap and change in quality, with their intervals; a band is what is accepted."""
    rows = [_row(frontier, level) for level in frontier.levels]
    limit, xs = frontier.max_disparity, [row[end] for row in rows for end in ("gap_low", "gap_high")] + [0.0]
    if limit is not None:
        xs += [limit, *([-limit] if min(xs) < 0 else [])]
    ranges = {"x": _range(xs), "y": _range([row[end] for row in rows for end in ("low", "high")] + [0.0])}
    _place_labels(rows, ranges)
    is_pd = len(frontier.groups) == 2
    x_title = f"PD: {frontier.groups[0]} − {frontier.groups[1]}" if is_pd else "gap of the group furthest behind"
    y_title = f"change of everyone's {frontier.metric}, %"

    def at(x: str = "gap", y: str = "change", **others: Any) -> dict[str, Any]:
        """Encodings by the fields of x and y."""
        axes = {"x": (x, x_title, {"tickCount": 6}), "y": (y, y_title, _NAMED_ABOVE)}
        return others | {
            name: {
                "field": field,
                "type": "quantitative",
                "title": title,
                "axis": axis,
                "scale": {"domain": ranges[name], "nice": False, "zero": False},
            }
            for name, (field, title, axis) in axes.items()
        }

    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": list(_COLOURS), "range": list(_COLOURS.values())},
        "legend": {"orient": "bottom", "title": None},
    }
    band = [] if limit is None else [_band(max(-limit, ranges["x"][0]), min(limit, ranges["x"][1]))]
    zero, faint = {"type": "rule", "strokeDash": [3, 3], "color": "#999"}, {"type": "rule", "opacity": 0.45}
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "data": {"values": rows},
        "layer": [
            *band,
            {**_ONCE, "mark": zero, "encoding": {"x": {"datum": 0}}},
            {**_ONCE, "mark": zero, "encoding": {"y": {"datum": 0}}},
            {
                "mark": {"type": "line", "color": "#bbb", "strokeWidth": 1.2},
                "encoding": at(order={"field": "level", "type": "quantitative"}),
            },
            {"mark": faint, "encoding": at(x="gap_low", x2={"field": "gap_high"}, color=colour)},
            {"mark": faint, "encoding": at(y="low", y2={"field": "high"}, color=colour)},
            {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1}, "encoding": at(color=colour)},
            {
                "mark": {"type": "text", "align": "left", "baseline": "top", "fontSize": _FONT_SIZE},
                "encoding": at(x="label_x", y="label_y", text={"field": "name"}, color=colour),
            },
        ],
    }


def _place_labels(rows: list[dict[str, Any]], ranges: dict[str, list[float]]) -> None:
    """Give each row the upper left corner of its label, where that covers no point and no other label."""
    (left, right), (bottom, top) = ranges["x"], ranges["y"]

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


def _groups(frontier: Frontier) -> dict[str, Any]:
    """What everyone and each group gets at each level; the lines are named at their ends."""
    names = [*_shown(frontier), _EVERYONE]
    styles = dict(palette(names))
    rows = [
        {"level": frontier.name_of(level), "group": name, "quality": value}
        for level in frontier.levels
        for name, value in {**level.scores.by_group, _EVERYONE: level.quality}.items()
        if name in styles and value is not None
    ]
    by_group = {
        channel: {
            "field": "group",
            "type": "nominal",
            "legend": None,
            "scale": {"domain": names, "range": [getattr(style, look) for style in styles.values()]},
        }
        for channel, look in {"color": "colour", "shape": "shape", "strokeDash": "dash"}.items()
    }
    axes = {
        "x": {
            "field": "level",
            "type": "ordinal",
            "sort": None,
            "title": frontier.lever,
            "axis": {"labelAngle": 0},
        },
        "y": {
            "field": "quality",
            "type": "quantitative",
            "title": f"{frontier.metric} of each group",
            "scale": {"zero": False},
            "axis": _NAMED_ABOVE,
        },
    }
    last = f"datum.level === '{frontier.name_of(frontier.levels[-1])}'"
    return {
        "width": 300,
        "height": _HEIGHT,
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 1.6},
                "encoding": {**axes, "color": by_group["color"], "strokeDash": by_group["strokeDash"]},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
                "encoding": {**axes, "color": by_group["color"], "shape": by_group["shape"]},
            },
            {
                "transform": [{"filter": last}],
                "mark": {"type": "text", "align": "left", "dx": 9, "fontSize": _FONT_SIZE},
                "encoding": {**axes, "text": {"field": "group"}, "color": by_group["color"]},
            },
        ],
    }


def _shown(frontier: Frontier) -> list[str]:
    """The groups that get a line: of many, those furthest behind and ahead without a lever."""
    if len(frontier.groups) < _MOST_LINES:
        return list(frontier.groups)
    gaps = frontier.none.scores.gaps
    ranked = sorted(gaps, key=lambda name: gaps[name].value)
    return [*ranked[:3], *ranked[-2:]]


def _row(frontier: Frontier, level: FrontierLevel) -> dict[str, Any]:
    base, change = frontier.none.quality or 1.0, level.quality_change
    low, high = level.gap.interval or (level.gap.value, level.gap.value)
    kind = (
        "recommended" if level is frontier.recommended else "on the Pareto front" if level.is_on_front else "behind it"
    )
    return {
        "level": level.value,
        "name": frontier.name_of(level),
        "kind": kind,
        "gap": level.gap.value,
        "gap_low": low,
        "gap_high": high,
        "change": 100 * change.value / base,
        "low": 100 * change.low / base,
        "high": 100 * change.high / base,
    }


def _band(left: float, right: float) -> dict[str, Any]:
    return {
        **_ONCE,
        "mark": {"type": "rect", "color": "#009E73", "opacity": 0.08},
        "encoding": {"x": {"datum": left}, "x2": {"datum": right}},
    }


def _range(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    room = (high - low or 1.0) * 0.06
    return [low - room, high + room]


_ONCE: dict[str, Any] = {"data": {"values": [{}]}}
"""A mark that does not depend on the data is drawn once, and not for each row."""
_NAMED_ABOVE = {
    "titleAngle": 0,
    "titleAlign": "left",
    "titleAnchor": "end",
    "titleBaseline": "bottom",
    "titleX": -24,
    "titleY": -6,
}
"""A name that stands on its side is hard to read and takes width."""
