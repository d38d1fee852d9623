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
_TASKS = {"event": "at each event", "next": "in one list for the period"}
_FRONT, _BEHIND, _CHOSEN = "#0072B2", "#767676", "#D55E00"


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
            "subtitle": f"{frontier.metric} {_TASKS[frontier.task]}, {frontier.n_users:,} users, {n_periods} periods; "
            f"95 % intervals over users",
            "fontSize": 14,
            "offset": 14,
        },
        "hconcat": [_tradeoff(frontier), _groups(frontier)],
        "spacing": 48,
        "config": {**CONFIG, "background": "white"},
        "padding": 14,
    }


def _tradeoff(frontier: Frontier) -> dict[str, Any]:
    """Each level's gap and change in quality, with their intervals; a band is what is accepted."""
    rows = [_row(frontier, level) for level in frontier.levels]
    xs = [end for row in rows for end in (row["gap_low"], row["gap_high"])] + [0.0]
    limit = frontier.max_disparity
    if limit is not None:
        xs += [limit, *([-limit] if min(xs) < 0 else [])]
    x_domain, y_domain = _domain(xs), _domain([end for row in rows for end in (row["low"], row["high"])] + [0.0])
    is_pd = len(frontier.groups) == 2
    title = f"PD: {frontier.groups[0]} − {frontier.groups[1]}" if is_pd else "gap of the group furthest behind"
    x = {"field": "gap", "type": "quantitative", "title": title, "scale": {"domain": x_domain, "nice": False}}
    y = {
        "field": "change",
        "type": "quantitative",
        "title": f"change of everyone's {frontier.metric}, %",
        "scale": {"domain": y_domain, "nice": False},
        "axis": _NAMED_ABOVE,
    }
    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": ["recommended", "on the Pareto front", "behind it"], "range": [_CHOSEN, _FRONT, _BEHIND]},
    }
    band = [] if limit is None else [_band(max(-limit, x_domain[0]), min(limit, x_domain[1]))]
    faint = {"mark": {"type": "rule", "opacity": 0.45}}
    return {
        "width": 380,
        "height": 300,
        "data": {"values": rows},
        "layer": [
            *band,
            {"mark": {"type": "rule", "strokeDash": [3, 3], "color": "#999"}, "encoding": {"x": {"datum": 0}}},
            {"mark": {"type": "rule", "strokeDash": [3, 3], "color": "#999"}, "encoding": {"y": {"datum": 0}}},
            {
                "mark": {"type": "line", "color": "#bbb", "strokeWidth": 1.2},
                "encoding": {"x": x, "y": y, "order": {"field": "level", "type": "quantitative"}},
            },
            {
                **faint,
                "encoding": {"x": {**x, "field": "gap_low"}, "x2": {"field": "gap_high"}, "y": y, "color": colour},
            },
            {**faint, "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "x": x, "color": colour}},
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 7, "dy": -8, "fontSize": 11},
                "encoding": {"x": x, "y": y, "text": {"field": "name"}, "color": colour},
            },
        ],
    }


def _groups(frontier: Frontier) -> dict[str, Any]:
    """What everyone and each group gets at each level."""
    names = [_EVERYONE, *_shown(frontier)]
    styles = dict(palette(names))
    rows = [
        {"level": frontier.name_of(level), "order": level.value, "group": name, "quality": value}
        for level in frontier.levels
        for name, value in {_EVERYONE: level.quality, **level.scores.by_group}.items()
        if name in styles and value is not None
    ]
    looks = {
        "color": {"range": [style.colour for style in styles.values()]},
        "shape": {"range": [style.shape for style in styles.values()]},
        "strokeDash": {"range": [list(style.dash) for style in styles.values()]},
    }
    by_group = {
        channel: {"field": "group", "type": "nominal", "scale": {"domain": names, **scale}, "sort": None}
        for channel, scale in looks.items()
    }
    return {
        "width": 300,
        "height": 300,
        "data": {"values": rows},
        "mark": {"type": "line", "point": {"size": 55, "filled": True}, "strokeWidth": 1.6},
        "encoding": {
            "x": {
                "field": "level",
                "type": "ordinal",
                "sort": {"field": "order"},
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
            **by_group,
        },
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
        "mark": {"type": "rect", "color": "#009E73", "opacity": 0.08},
        "encoding": {"x": {"datum": left}, "x2": {"datum": right}},
    }


def _domain(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    room = (high - low or 1.0) * 0.06
    return [low - room, high + room]


_NAMED_ABOVE = {
    "titleAngle": 0,
    "titleAlign": "left",
    "titleAnchor": "end",
    "titleBaseline": "bottom",
    "titleX": -24,
    "titleY": -6,
}
"""A name that stands on its side is hard to read and takes width."""
