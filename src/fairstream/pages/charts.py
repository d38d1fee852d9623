"""Vega-Lite charts of a page: their data, their legend, the look of a series."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairstream.display import import_optional
from fairstream.pages.rendering import read_asset
from fairstream.plotting import COLOURS, SHAPES

SOLID, DASHED, DOTTED = (1, 0), (6, 3), (2, 2)
_DASHES = (SOLID, DASHED, DOTTED, DOTTED, DOTTED, DOTTED)


class Style(NamedTuple):
    """Colour, shape of the points, and dashes of the line."""

    colour: str
    shape: str
    dash: tuple[int, ...]


Styles = tuple[tuple[str, Style], ...]  # each series of a figure, in order, and its style


def palette(names: Sequence[str]) -> Styles:
    """Return a style for each name, by position.

    >>> [style.shape for _, style in palette(["majority", "minority"])]
    ['circle', 'square']
    """
    looks = [Style(*look) for look in zip(COLOURS, SHAPES, _DASHES, strict=True)]
    return tuple((name, looks[position % len(looks)]) for position, name in enumerate(names))


class Chart(NamedTuple):
    """The element that a chart is drawn in."""

    id: str
    label: str  # the chart in words, for readers who cannot see it
    title: str = ""
    note: str = ""


@dataclass
class Charts:
    """The charts of a page: specifications, each stored once, and the rows of each element by its id."""

    specs: list[dict[str, Any]] = field(default_factory=list)
    drawn: dict[str, dict[str, Any]] = field(default_factory=dict)
    _positions: dict[str, int] = field(default_factory=dict)

    def add(
        self, id_: str, spec: dict[str, Any], rows: Iterable[Any], label: str, *, title: str = "", note: str = ""
    ) -> Chart:
        """Add a chart and return its element."""
        position = self._positions.setdefault(json.dumps(spec, sort_keys=True), len(self.specs))
        if position == len(self.specs):
            self.specs.append(spec)
        self.drawn[id_] = {"spec": position, "rows": list(rows)}
        return Chart(id_, label, title, note)


def page_spec(chart: Any, height: int | None = None) -> dict[str, Any]:
    """Return an altair chart as a specification without data and style, as wide as its element."""
    size = {"width": "container"} | ({} if height is None else {"height": height})
    spec = chart.properties(**size).to_dict(validate=False)  # the check takes long; tests do it
    return {key: part for key, part in spec.items() if key not in ("config", "datasets")} | {"data": {"values": []}}


def draw(spec: dict[str, Any], format: str) -> bytes:  # noqa: A002
    """Return a chart as PNG (at twice the size, for sharp screens and paper) or SVG."""
    vl_convert = import_optional("vl_convert", "a picture", "fairstream[report]")
    if format == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=2))
    return str(vl_convert.vegalite_to_svg(spec)).encode()


def axis_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that holds these values, with some room."""
    low, high = min(values), max(values)
    room = (high - low or abs(high) or 1.0) * 0.06
    return round(low - room, 6), round(high + room, 6)


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a chart with six decimals."""
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}


CONFIG: dict[str, Any] = json.loads(read_asset("vega.json"))
"""The style of all charts. CSS recolours their axes, so that they follow light, dark and print; titles stand above the
y axis, because on their side they are hard to read. An element around each chart has its label, so `aria` is off."""
