"""The overview as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.pages.format import number, plain
from fairstream.pages.markup import Markup, element
from fairstream.pages.tables import Cell, section
from fairstream.service.dashboard import charts
from fairstream.service.dashboard.charts import Drawing
from fairstream.service.dashboard.health import health_facts
from fairstream.service.dashboard.overview import Overview
from fairstream.service.dashboard.overview_tables import (
    disparity_table,
    drift_table,
    group_table,
    model_table,
    record_table,
)
from fairstream.service.dashboard.parts import chart, document, facts, folded, note
from fairstream.service.dashboard.spoken import course
from fairstream.service.dashboard.target import overview_target
from fairstream.service.dashboard.words import (
    BY_CHANCE,
    TOO_FEW,
    count_words,
    disparity_sentence,
    metric_name,
    model_link,
    number_or_dash,
    percent,
    state_sentence,
)

_PARTS = (
    ("#disparity", "Disparity"),
    ("#target", "Accepted gap"),
    ("#groups", "Groups"),
    ("#models", "Models"),
    ("#drift", "Drift"),
    ("#health", "Events and requests"),
    ("#record", "Record"),
)


def overview_page(overview: Overview, health: Mapping[str, Any] | None = None) -> str:
    """The whole page as text."""
    drawings: dict[str, Drawing] = {}
    main = (
        _disparity(overview, drawings),
        overview_target(overview),
        _groups(overview, drawings),
        _models(overview),
        _drift(overview, drawings),
        _health(overview, health, drawings),
        section("Record", note(_RECORD_NOTE), record_table(overview), id_="record"),
    )
    header = (
        element("p", "fairstream", class_="brand"),
        element("h1", overview.name),
        element("p", state_sentence(overview), class_="summary"),
        facts(_tiles(overview), class_="tiles"),
    )
    contents = [part for part in _PARTS if part[0] != "#target" or main[1] is not None]
    return document(f"{overview.name} · fairstream", header=header, main=main, contents=contents, drawings=drawings)


def _tiles(overview: Overview) -> list[tuple[str, Cell]]:
    last = overview.judged[-1] if overview.judged else None
    gap = last.largest_gap if last else None
    performance = last.scores.mean if last and last.scores else None
    told = (
        ""
        if gap is None
        else BY_CHANCE
        if gap.may_be_chance
        else f"limit {number_or_dash(last.limit if last else None)}"
    )
    return [
        ("In service", model_link(overview.service.model) if overview.service else "no model yet"),
        (f"{metric_name(overview.metric)}, last period", number_or_dash(performance)),
        (
            "Largest gap, last period",
            element("span", number(gap.value), element("small", told)) if gap else (TOO_FEW if last else "–"),
        ),
        ("Events waiting", f"{overview.events.waiting:,}"),
    ]


def _disparity(overview: Overview, drawings: dict[str, Drawing]) -> Markup:
    if not overview.judged:
        return section("Disparity over time", element("p", disparity_sentence(overview)), id_="disparity")
    drawings["chart-gap"] = charts.gap_chart(overview)
    drawings["chart-pd"] = charts.signed_chart(overview)
    gaps = [(period.t, period.largest_gap.value if period.largest_gap else None) for period in overview.judged]
    signed = [(period.t, period.scores.performance_disparity if period.scores else None) for period in overview.judged]
    allowed = plain(overview.gate.max_rise)
    limit = f"The limit drawn is the gap of the period before and {allowed} more, the rise that the gate allows."
    return section(
        "Disparity over time",
        element("p", disparity_sentence(overview)),
        note(_GAP_NOTE, " ", limit),
        _WITHOUT_SCRIPT,
        element(
            "div",
            chart(
                "chart-gap",
                "The largest gap",
                course("Largest gap between a group and the rest", gaps),
                charts.GAP_STYLES,
            ),
            chart("chart-pd", "PD, with its sign", course("Performance disparity, signed", signed), charts.PD_STYLES),
            class_="panels",
        ),
        folded("The numbers of both charts", disparity_table(overview)),
        id_="disparity",
    )


def _groups(overview: Overview, drawings: dict[str, Drawing]) -> Markup:
    if not overview.judged:
        return section("Quality of each group", note("Nothing has been judged yet."), id_="groups")
    drawings["chart-groups"] = charts.group_chart(overview)
    few = f"A group with fewer than {overview.gate.min_group_size} tested users is {TOO_FEW}."
    words = f"{metric_name(overview.metric)} for the users of each group of “{overview.group}”; more is better. {few}"
    return section(
        "Quality of each group",
        note(words),
        chart("chart-groups", "By period", _groups_in_words(overview), charts.group_styles(overview)),
        folded("The numbers of this chart", group_table(overview)),
        id_="groups",
    )


def _groups_in_words(overview: Overview) -> str:
    last = overview.judged[-1]
    found = last.scores.by_group if last.scores else {}
    parts = [f"{name} {TOO_FEW if value is None else number(value)}" for name, value in found.items()]
    return f"{metric_name(overview.metric)} of each group by period; in period {last.t}: {', '.join(parts) or 'none'}."


def _models(overview: Overview) -> Markup:
    links: list[str] = []
    if overview.earlier is not None:
        links.append(element("a", f"Periods before {overview.earlier}", href=f"/?before={overview.earlier}"))
    if not overview.is_latest:
        links.append(element("a", "The latest periods", href="/"))
    pages = element("p", *(element("span", link) for link in links), class_="pages") if links else None
    shown = model_table(overview) if overview.models else note("There are no models yet.")
    return section("Models and decisions", note(_MODEL_NOTE), shown, pages, id_="models")


def _drift(overview: Overview, drawings: dict[str, Drawing]) -> Markup:
    if not overview.periods:
        return section("Drift", note("No period has been closed yet."), id_="drift")
    metric = metric_name(overview.metric)
    panels: list[Markup] = []
    if overview.judged:
        drawings["chart-performance"] = charts.performance_chart(overview)
        values = [(period.t, period.scores.mean if period.scores else None) for period in overview.judged]
        panels.append(
            chart("chart-performance", "The model in service", course(f"{metric} of the model in service", values))
        )
    for id_, title, described, share in (
        (
            "chart-cold",
            "Cold users",
            "Share of tested users that the model did not know",
            [p.cold_share for p in overview.periods],
        ),
        ("chart-late", "Late events", "Share of late events", [p.late_share for p in overview.periods]),
    ):
        panels += _bars(overview, drawings, id_, title, described, share, "~%")
    for id_, title, described, counts in (
        ("chart-items", "Items", "Items with events", [period.n_items for period in overview.periods]),
        ("chart-new", "New items", "Items never seen before", [period.n_new_items for period in overview.periods]),
    ):
        panels += _bars(overview, drawings, id_, title, described, counts, "~s")
    return section(
        "Drift",
        note(_DRIFT_NOTE),
        element("div", *panels, class_="panels"),
        folded("The numbers of these charts", drift_table(overview)),
        id_="drift",
    )


def _bars(
    overview: Overview,
    drawings: dict[str, Drawing],
    id_: str,
    title: str,
    described: str,
    values: Sequence[float | int | None],
    format_: str,
) -> list[Markup]:
    if all(value is None for value in values):
        return []
    drawings[id_] = charts.bar_chart(overview, values, "share" if "%" in format_ else "number", format_)
    points = [(period.t, value) for period, value in zip(overview.periods, values, strict=True)]
    written = percent if "%" in format_ else count_words
    return [chart(id_, title, course(described, points, written))]


def _health(overview: Overview, health: Mapping[str, Any] | None, drawings: dict[str, Drawing]) -> Markup:
    counts = [period.n_events for period in overview.periods]
    panels = _bars(overview, drawings, "chart-events", "Events of each period", "Events by period", counts, "~s")
    return section(
        "Events and requests",
        facts(health_facts(overview, health)),
        element("div", *panels, class_="panels") if panels else None,
        note("How many events each period had is in the numbers of drift.") if panels else None,
        id_="health",
    )


_GAP_NOTE = (
    "Each period first judges the model in service, before anything of it is learned. The largest gap is the distance "
    "between a group and all other users, its interval cut off at 0; PD is that of the advantaged group, above 0 where "
    "it is better served."
)
_MODEL_NOTE = "Judged on the events of their period that were held out, which no candidate had learned."
_DRIFT_NOTE = (
    "Cold users were tested but are new to the model in service. Late events are dated before the last one of the "
    "period before; they are learned with the period in which they arrived."
)
_RECORD_NOTE = (
    "Every update and decision is recorded, and no entry can be changed unseen: fairstream audit DIR checks that."
)
_WITHOUT_SCRIPT = element(
    "noscript", note("Charts are drawn with JavaScript, which is off here; the tables hold the same numbers.")
)
