"""A whole figure as one picture, drawn without a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from fairstream.files import replace_file
from fairstream.pages.series import CONFIG, styles_of
from fairstream.paper.findings import Findings
from fairstream.paper.report.charts import rows_of, spec_of
from fairstream.paper.report.figures import Figure, Panel, figures_of
from fairstream.paper.report.writing import PictureFormat

_WIDTH = 190


def export_figures(findings: Findings, folder: Path, *, format: PictureFormat) -> list[Path]:  # noqa: A002
    """One picture per figure that has anything to show; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in figures_of(findings.points):
        if any(panel.paper or panel.ours for panel in figure.panels):
            path = folder / f"{figure.anchor}.{format}"
            replace_file(path, picture(figure, format=format))
            written.append(path)
    return written


def picture(figure: Figure, *, format: PictureFormat) -> bytes:  # noqa: A002
    """The figure as PNG (at twice the size, for sharp screens and paper) or SVG."""
    spec = figure_spec(figure)
    if format == "png":
        return vl_convert.vegalite_to_png(spec, scale=2)
    return vl_convert.vegalite_to_svg(spec).encode()


def figure_spec(figure: Figure) -> dict[str, Any]:
    """All panels in rows of two, in each the paper's on the left and ours on the right, one legend for all."""
    sides = [side for panel in figure.panels for side in _sides(panel, figure)]
    shared = dict.fromkeys(("color", "shape", "strokeDash"), "shared")
    return {
        "$schema": alt.SCHEMA_URL,
        "concat": sides,
        "columns": 4 if len(sides) > 2 else 2,
        "resolve": {"scale": shared},
        "title": {"text": figure.caption.title, "fontSize": 14, "offset": 12},
        "config": {**CONFIG, "background": "white"},
        "padding": 12,
    }


def _sides(panel: Panel, figure: Figure) -> list[dict[str, Any]]:
    if not panel.paper and not panel.ours:
        return []
    chart = spec_of(panel, styles_of(figure.series), legend=True)
    del chart["$schema"]
    sides = []
    for whose, marks in (("the paper", panel.paper), ("ours", panel.ours)):
        if whose == "ours" or figure.has_paper:
            # A side without numbers is drawn with empty axes, so that what is missing can be seen.
            title = {"text": panel.title, "subtitle": whose if marks else f"{whose}: no numbers", "offset": 14}
            sides.append({**chart, "width": _WIDTH, "title": title, "data": {"values": rows_of(marks)}})
    return sides
