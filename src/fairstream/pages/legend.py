"""One legend for all charts of a figure, drawn with the marks that the charts use."""

from __future__ import annotations

from fairstream.pages.markup import Markup, element
from fairstream.pages.series import Style, Styles

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
    """Each series' name beside its line and its mark."""
    return element("ul", *(element("li", _swatch(style), name) for name, style in styles), class_="legend")


def _swatch(style: Style) -> Markup:
    dash = " ".join(map(str, style.dash))
    line = element("path", d="M0,6H28", stroke=style.colour, stroke_width="1.6", stroke_dasharray=dash)
    outline = _OUTLINES.get(style.shape, style.shape)
    mark = element("path", d=outline, fill=style.colour, transform="translate(14 6) scale(4.6)")
    return element("svg", line, mark, width="28", height="12", viewBox="0 0 28 12", aria_hidden="true")
