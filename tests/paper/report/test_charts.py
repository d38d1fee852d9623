"""Charts that say what the numbers say, on axes that the paper and ours share."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fairstream.errors import ConfigurationError
from fairstream.pages.charts import draw
from fairstream.paper.report import write_figures
from fairstream.paper.report.figures import (
    _STYLES,
    Figure,
    described,
    figure_spec,
    figures_of,
    ranges_of,
    rows_of,
    spec_of,
    styles_of,
)
from fairstream.paper.report.page import page_of
from report_findings import findings, without_runs

pytestmark = pytest.mark.slow

FIGURES = figures_of(findings().points)
PANELS = [panel for figure in FIGURES for panel in figure.panels]


def test_every_point_is_in_exactly_one_panel() -> None:
    given = findings().points
    shown = [point for figure in FIGURES for point in figure.points]
    assert sorted(map(repr, shown)) == sorted(map(repr, given))
    assert {figure.caption.label for figure in FIGURES} == {point.place.figure for point in given}


def test_a_panel_draws_what_it_holds() -> None:
    for panel in PANELS:
        for marks, side in ((panel.paper, "paper"), (panel.ours, "ours")):
            values = {(p.place.series, p.place.x, p.place.y_name): getattr(p, side) for p in panel.points}
            for mark in marks:
                if panel.is_tradeoff:
                    expected = (values[mark.series, None, "performance"], values[mark.series, None, "abs_pd"])
                else:
                    expected = (mark.x, values[mark.series, mark.x, panel.about.y_name])
                assert (mark.x, mark.y) == expected
            n_known = sum(value is not None for value in values.values())
            assert len(marks) == (n_known // 2 if panel.is_tradeoff else n_known)


def test_both_sides_lie_within_the_axes_that_they_share() -> None:
    for panel in PANELS:
        if panel.paper or panel.ours:
            (left, right), (low, high) = ranges_of(panel)
            for mark in (*panel.paper, *panel.ours):
                assert left <= mark.x - mark.x_sd <= mark.x + mark.x_sd <= right
                assert low <= mark.y <= mark.y + mark.y_sd <= high


def test_each_chart_is_valid_vega_lite_with_the_paper_s_axes() -> None:
    import altair as alt

    for figure in FIGURES:
        for panel in figure.panels:
            spec = spec_of(panel, styles_of(figure.series))
            alt.Chart.from_dict({**spec, "data": {"values": rows_of(panel.ours)}}, validate=True)
            domains = {
                axis: layer["encoding"][axis]["scale"]["domain"]
                for layer in spec["layer"]
                for axis in ("x", "y")
                if "scale" in layer["encoding"][axis]
            }
            assert tuple(map(tuple, (domains["x"], domains["y"]))) == ranges_of(panel)


def test_the_page_holds_the_data_of_every_chart() -> None:
    data = re.search(r'<script id="charts" type="application/json">(.*?)</script>', page_of(findings()), re.DOTALL)
    assert data is not None
    held: dict[str, Any] = json.loads(data[1])
    drawn = [
        rows_of(marks) for f in FIGURES for p in f.panels for marks in ((p.paper, p.ours) if f.has_paper else (p.ours,))
    ]
    assert sorted(map(str, drawn)) == sorted(str(chart["rows"]) for chart in held["drawn"].values())


def test_each_figure_is_valid_vega_lite() -> None:
    import altair as alt

    for figure in FIGURES:
        alt.ConcatChart.from_dict(figure_spec(figure), validate=True)


@pytest.mark.parametrize("is_tradeoff", [False, True])
def test_a_figure_becomes_a_picture(is_tradeoff: bool) -> None:
    alike = [figure for figure in FIGURES if figure.panels[0].is_tradeoff == is_tradeoff]
    figure = min(alike, key=lambda figure: len(figure.points))
    assert draw(figure_spec(figure), "png").startswith(b"\x89PNG")
    need_all_marks(figure)


def need_all_marks(figure: Figure) -> None:
    text = draw(figure_spec(figure), "svg").decode()
    assert text.startswith("<svg")
    n_marks = sum(len(panel.ours) + len(panel.paper) for panel in figure.panels)
    assert (
        text.count('aria-roledescription="point"') + len(re.findall(r"<path[^>]*stroke-width=\"9\"", text)) >= n_marks
    )


def test_pictures_are_named_by_the_paper_s_labels(tmp_path: Path) -> None:
    few = findings()
    points = tuple(point for point in few.points if point.place.figure in ("fig:params", "fig:scaling"))
    written = write_figures(type(few)(**{**vars(few), "points": points}), tmp_path / "new", format="svg")
    assert [path.name for path in written] == ["fig-scaling.svg", "fig-params.svg"]
    assert sorted(tmp_path.rglob("*.svg")) == sorted(written)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="choose another folder"):
        write_figures(few, tmp_path / "file", format="svg")


def test_what_is_not_run_is_named_in_the_picture() -> None:
    (figure,) = (f for f in figures_of(without_runs().points) if f.caption.label == "fig:params")
    assert "ours: no numbers" in json.dumps(figure_spec(figure))


def test_series_of_one_figure_differ_in_more_than_colour() -> None:
    for figure in FIGURES:
        styles = [style for _, style in styles_of(figure.series)]
        assert len({style.shape for style in styles}) == len(styles)
    methods = [style for name, style in _STYLES.items() if "[" not in name and "vantaged" not in name]
    assert len({style.shape for style in methods}) == len(methods)


def test_the_words_for_a_chart_give_each_series_ends() -> None:
    (figure,) = (figure for figure in FIGURES if figure.caption.label == "fig:trunc-trend-taskR")
    panel = figure.panels[0]
    words = described(panel, panel.ours, whose="Ours")
    for name in figure.series:
        line = [mark for mark in panel.ours if mark.series == name]
        assert f"{name} from {line[0].y:.4f} at period 1 to {line[-1].y:.4f} at 4" in words
