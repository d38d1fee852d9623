"""A figure on the page: caption, legend, and panels with the paper's chart on the left and ours on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairstream.pages.format import counted, share
from fairstream.pages.legend import legend
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import Styles, styles_of
from fairstream.paper.report.agreement import agreeing
from fairstream.paper.report.charts import described, rows_of, spec_of
from fairstream.paper.report.figures import Figure, Mark, Panel


@dataclass
class Charts:
    """The charts of a page by the id of the element that each is drawn in."""

    specs: list[dict[str, Any]] = field(default_factory=list)
    drawn: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, spec: dict[str, Any]) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1


def figure_block(figure: Figure, charts: Charts) -> Markup:
    """The figure, with its charts added to `charts`."""
    styles = styles_of(figure.series)
    panels = [
        _panel(figure, panel, charts, styles, id_=f"{figure.anchor}-{position}")
        for position, panel in enumerate(figure.panels)
    ]
    caption = element(
        "figcaption",
        element("h3", figure.caption.title),
        element("p", figure.caption.reading, " ", _standing(figure), " ", _to_the_numbers(figure)),
    )
    return element(
        "figure",
        caption,
        legend(styles),
        element("div", *panels, class_="panels" if figure.has_paper else "panels alone"),
        id=figure.anchor,
    )


def _standing(figure: Figure) -> str:
    points = figure.points
    agree, compared = agreeing(points)
    missing = sum(point.ours is None for point in points)
    words = (
        f"{agree:,} of {counted(compared, 'number')} agree ({share(agree, compared)})."
        if figure.has_paper
        else "The source of the paper gives no numbers for this figure: ours alone."
    )
    return words + (f" {missing:,} of ours {'is' if missing == 1 else 'are'} not run." if missing else "")


def _to_the_numbers(figure: Figure) -> Markup:
    return element("a", "Its numbers", href="#numbers", data_figure=figure.caption.label)


def _panel(figure: Figure, panel: Panel, charts: Charts, styles: Styles, *, id_: str) -> Markup:
    has_any = panel.paper or panel.ours
    spec = charts.add(spec_of(panel, styles)) if has_any else None
    sides = [_side("Ours", panel, panel.ours, charts, spec, id_=f"{id_}-ours")]
    if figure.has_paper:
        sides.insert(0, _side("Paper", panel, panel.paper, charts, spec, id_=f"{id_}-paper"))
    return element("div", element("h4", panel.title), element("div", *sides, class_="pair"), class_="panel")


def _side(whose: str, panel: Panel, marks: Sequence[Mark], charts: Charts, spec: int | None, *, id_: str) -> Markup:
    name = element("p", whose, class_="whose")
    if not marks or spec is None:
        what = (
            "The source gives no numbers for this panel."
            if whose == "Paper"
            else "Not run: the store has no runs for this panel."
        )
        return element("div", name, element("p", what, class_="absent"), class_="side")
    charts.drawn[id_] = {"spec": spec, "rows": rows_of(marks)}
    chart = element("div", id=id_, class_="chart", role="img", aria_label=described(panel, marks, whose=whose))
    gaps = panel.n_missing if whose == "Ours" else 0
    return element("div", name, chart, element("p", f"{gaps} not run", class_="gap") if gaps else None, class_="side")
