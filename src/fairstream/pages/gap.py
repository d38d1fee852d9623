"""The page of `fairstream explain --between groups`: why a group is behind."""

from __future__ import annotations

from typing import Any

from fairstream.display import Table
from fairstream.evaluation import GapExplanation
from fairstream.evaluation.score_cells import CHANCE_MARK
from fairstream.pages.change import TASKS, part_spec
from fairstream.pages.charts import Charts, axis_range, page_spec, palette, rounded
from fairstream.pages.rendering import render
from fairstream.plotting import altair
from fairstream.text import number, signed

_ROW_HEIGHT = 34


def group_table(explanation: GapExplanation) -> Table:
    """Return the groups as served, what they could have had, and how they would fare with other lists."""
    how = f"{explanation.metric} {TASKS.get(explanation.task, '')}".strip()
    caption = f"{CHANCE_MARK} the 95 % interval contains 0; “own users alone” and “the other's best” are changes"
    align = "lrrrrrl" + "r" * (len(explanation.headings) - 7)
    return Table(explanation.headings, explanation.rows(), f"Each group in {how}", caption, align)


def gap_page(explanation: GapExplanation, name: str) -> str:
    """Return the page of an explanation; `name` is that of the run or the workspace."""
    charts, parts = Charts(), explanation.parts()
    styles = tuple((part, style._replace(shape="square", dash=(0, 99))) for part, style in palette(list(parts)))
    ends = [0.0, *(end for part in parts.values() for end in (part.value, *(part.interval or ())))]
    rows = [
        rounded({"part": part, "value": each.value, **({"low": each.low, "high": each.high} if each.interval else {})})
        for part, each in parts.items()
    ]
    label = "; ".join(f"{part} {signed(each.value)}" for part, each in parts.items())
    picture = charts.add("parts", part_spec(styles, axis_range(ends)), rows, f"Parts of the gap: {label}.")
    groups = explanation.groups
    points = [
        rounded({"group": group, "served": one.served, "attainable": one.attainable}) for group, one in groups.items()
    ]
    label = "; ".join(f"{g} {number(one.served)}, attainable {number(one.attainable)}" for g, one in groups.items())
    attainable = charts.add("groups-chart", _group_spec(list(groups)), points, f"{label}.")
    return render(
        "gap.html",
        title=f"The gap between {explanation.behind} and {explanation.rest}: {name}",
        explanation=explanation,
        sentences=explanation.sentences(),
        table_=group_table(explanation),
        picture=picture,
        attainable=attainable,
        parts=parts,
        charts=charts,
    )


def _group_spec(names: list[str]) -> dict[str, Any]:
    """Return a chart of each group: a bar as served, a line to what it could have had."""
    alt = altair()
    shown = [alt.Tooltip("group:N"), *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("served", "attainable"))]
    base = alt.Chart().encode(y=alt.Y("group:N", title=None, sort=names), tooltip=shown)
    bars = base.mark_bar(height=14, color="#0072B2").encode(x=alt.X("served:Q", title=None, axis=alt.Axis(tickCount=5)))
    lines = base.mark_rule(strokeWidth=4, color="#D55E00").encode(x=alt.X("served:Q"), x2="attainable:Q")
    ticks = base.mark_tick(thickness=3, size=22, color="#D55E00").encode(x=alt.X("attainable:Q"))
    layers = alt.LayerChart(layer=[bars, lines, ticks], data=alt.InlineData(values=[]))
    return page_spec(layers, _ROW_HEIGHT * len(names))
