"""What a series looks like: a colour that colour-blind readers can tell apart, a mark of its own, and the legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fairstream.pages.markup import Markup, element

# Okabe and Ito's palette, with a grey that can be seen on white and on black in place of black. Its yellow is left out.
_GREY, _ORANGE, _SKY, _GREEN = "#767676", "#E69F00", "#56B4E9", "#009E73"
_BLUE, _VERMILION, _PURPLE = "#0072B2", "#D55E00", "#CC79A7"
_STAR = "M0,-1L0.27,-0.37L0.95,-0.31L0.43,0.14L0.59,0.81L0,0.45L-0.59,0.81L-0.43,0.14L-0.95,-0.31L-0.27,-0.37Z"


@dataclass(frozen=True)
class Style:
    """Colour, shape of the point, and dashes of the line."""

    colour: str
    shape: str
    dash: tuple[int, ...]


Styles = tuple[tuple[str, Style], ...]
"""Each series of a figure, in order, and its style."""

_SOLID, _DASHED, _DOTTED = (1, 0), (6, 3), (2, 2)
# A method and its fair twin share the colour; the twin's line is dashed.
_STYLES = {
    "Pretrain": Style(_GREY, "cross", _SOLID),
    "Pretrain-Fair": Style(_GREY, "diamond", _DASHED),
    "Retrain": Style(_GREEN, "square", _SOLID),
    "Retrain-Fair": Style(_GREEN, "triangle-up", _DASHED),
    "Finetune": Style(_VERMILION, "triangle-down", _SOLID),
    "Adver": Style(_PURPLE, "triangle-right", _SOLID),
    "Rerank": Style(_ORANGE, "triangle-left", _SOLID),
    "FADE-Abs": Style(_SKY, _STAR, _DASHED),
    "FADE": Style(_BLUE, "circle", _SOLID),
    "FADE[ApproxNDCG]": Style(_PURPLE, "triangle-up", _DASHED),
    "FADE[NeuralNDCG]": Style(_ORANGE, "square", _DASHED),
    "FADE[DH]": Style(_BLUE, "circle", _SOLID),
    "advantaged": Style(_BLUE, "circle", _SOLID),
    "disadvantaged": Style(_VERMILION, "square", _DASHED),
}
_OTHERS = (
    Style(_PURPLE, "diamond", _DOTTED),
    Style(_GREEN, "cross", _DOTTED),
    Style(_ORANGE, "triangle-down", _DOTTED),
    Style(_SKY, "square", _DOTTED),
)


def in_order(series: Iterable[str]) -> list[str]:
    """The paper's methods in its order, then the others by name."""
    known = list(_STYLES)
    return sorted(series, key=lambda name: (known.index(name) if name in _STYLES else len(known), name))


def styles_of(series: Iterable[str]) -> Styles:
    """Each series' style; names that the paper does not have get what is left, in order.

    >>> [(name, style.colour) for name, style in styles_of(["mine", "FADE"])]
    [('FADE', '#0072B2'), ('mine', '#CC79A7')]
    """
    ordered = in_order(series)
    unknown = [name for name in ordered if name not in _STYLES]
    others = {name: _OTHERS[position % len(_OTHERS)] for position, name in enumerate(unknown)}
    return tuple((name, others.get(name) or _STYLES[name]) for name in ordered)


def palette(names: Sequence[str]) -> Styles:
    """A style for each of any names, in their order: the same place, the same style.

    >>> [style.shape for _, style in palette(["majority", "minority"])]
    ['circle', 'square']
    """
    found = (_STYLES["advantaged"], _STYLES["disadvantaged"], *_OTHERS)
    return tuple((name, found[position % len(found)]) for position, name in enumerate(names))


# The outlines of Vega's symbols, in a box from −1 to 1; a style's shape may also be an outline itself.
_OUTLINES = {
    "circle": "M-0.8,0A0.8,0.8 0 1 1 0.8,0A0.8,0.8 0 1 1 -0.8,0Z",
    "square": "M-0.7,-0.7H0.7V0.7H-0.7Z",
    "diamond": "M0,-1L0.8,0L0,1L-0.8,0Z",
    "cross": "M-0.9,-0.3H-0.3V-0.9H0.3V-0.3H0.9V0.3H0.3V0.9H-0.3V0.3H-0.9Z",
    "triangle-up": "M0,-0.8L0.9,0.8H-0.9Z",
    "triangle-down": "M0,0.8L0.9,-0.8H-0.9Z",
    "triangle-right": "M0.8,0L-0.8,0.9V-0.9Z",
    "triangle-left": "M-0.8,0L0.8,0.9V-0.9Z",
}


def legend(styles: Styles) -> Markup:
    """One legend for all charts of a figure: each series' name beside its line and its mark."""
    return element("ul", *(element("li", _swatch(style), name) for name, style in styles), class_="legend")


def _swatch(style: Style) -> Markup:
    dash = " ".join(map(str, style.dash))
    line = element("path", d="M0,6H28", stroke=style.colour, stroke_width="1.6", stroke_dasharray=dash)
    outline = _OUTLINES.get(style.shape, style.shape)
    mark = element("path", d=outline, fill=style.colour, transform="translate(14 6) scale(4.6)")
    return element("svg", line, mark, width="28", height="12", viewBox="0 0 28 12", aria_hidden="true")


_INK, _MUTED, _GRID = "#1b1e22", "#555b64", "#e4e5e8"
_FONT = "Helvetica Neue, Arial, Liberation Sans, sans-serif"

CONFIG: dict[str, Any] = {
    "aria": False,  # the element around a chart says in words what it shows
    "background": "transparent",
    "font": _FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": _MUTED,
        "titleColor": _MUTED,
        "titleFontWeight": "normal",
        "titleFontSize": 11,
        "labelFontSize": 10.5,
        "gridColor": _GRID,
        "domainColor": _MUTED,
        "tickColor": _MUTED,
        "tickSize": 3,
        "labelPadding": 3,
        "labelOverlap": "greedy",
        "labelSeparation": 4,
    },
    "axisY": {"domain": False, "ticks": False, "tickCount": 4},
    "axisX": {"grid": False, "titlePadding": 4},
    "legend": {
        "labelColor": _INK,
        "labelFontSize": 11,
        "symbolSize": 70,
        "symbolOpacity": 1,
        "orient": "bottom",
        "title": None,
    },
    "title": {"color": _INK, "fontSize": 11, "fontWeight": "normal", "anchor": "start"},
}
"""Calm axes. The page colours them anew with CSS, so that they follow light, dark and print."""
