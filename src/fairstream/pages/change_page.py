"""The page of `fairstream explain`: what moved, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import altair as alt

from fairstream.evaluation import Change, Estimate, Explained, Mix
from fairstream.pages.change_words import (
    MEANINGS,
    PARTS,
    TASKS,
    gap_moved,
    levels,
    may_be_chance,
    moved,
    named_parts,
    summary,
)
from fairstream.pages.document import Charts, whole_page
from fairstream.pages.format import signed
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import Styles, legend, palette
from fairstream.pages.tables import Cell, body, group_heading, row, section, table

_EVERYONE = "Everyone"
_ROW_HEIGHT, _PERIODS_HEIGHT = 30, 200
_ROOM = 0.05
_WHISKER = "#767676"
_LABELS = "datum.value === 0 ? '0' : format(datum.value, '+.3~f')"
_NOT_REPORTED = "too few to report"


def page_of(explained: Explained) -> str:
    """The page as text. The same numbers give the same page, byte for byte."""
    charts, shown = Charts(), explained.shown
    title = f"What moved: {explained.name}"
    contents = [("groups", "Everyone and the groups"), ("numbers", "All numbers"), ("mix", "Who was tested")]
    sections = [
        section(
            "Everyone and the groups",
            _note(
                f"What each part did to {explained.metric.upper()}. To the right it raised it, to the left it lowered "
                "it; the thin line is the 95 % interval. The parts of a picture add up to the change."
            ),
            _pictures({_EVERYONE: shown.everyone, **shown.groups}, charts, "part"),
            _left_out(explained),
            id_="groups",
        ),
        _numbers(explained),
        _mix(explained),
    ]
    if shown.gaps:
        contents.insert(1, ("gaps", "The gaps"))
        sections.insert(1, _gaps(explained, charts))
    if len(explained.periods) > 1:
        contents.insert(-2, ("periods", "All periods"))
        sections.insert(-2, _periods(explained, charts))
    contents.append(("words", "Words"))
    sections.append(_words(explained))
    header = element(
        "header",
        element("h1", title),
        element("p", f"{explained.tested[1].capitalize()}, compared with {explained.tested[0]}.", class_="note"),
        *(element("p", sentence, class_="summary") for sentence in summary(explained)),
        *(_note(sentence) for sentence in explained.notes),
        id="summary",
    )
    main = element("main", *sections, id="main")
    return whole_page(title, header=header, contents=contents, main=main, charts=charts, class_="short")


def _note(*words: str) -> Markup:
    return element("p", *words, class_="note")


def _gaps(explained: Explained, charts: Charts) -> Markup:
    return section(
        "The gaps",
        _note(
            f"A group's {explained.metric.upper()} minus that of everyone in the other groups. A part to the right was "
            "to the good of the group, one to the left to the good of the others."
        ),
        _pictures(_gap_changes(explained), charts, "gap", gap_moved),
        id_="gaps",
    )


def _left_out(explained: Explained) -> Markup | None:
    """Groups that some other period reports and this one does not."""
    names = {name for explanation in explained.periods.values() for name in explanation.groups}
    missing = sorted(names - set(explained.shown.groups))
    return _note(f"Too few tested users to report: {', '.join(missing)}.") if missing else None


# ── pictures ─────────────────────────────────────────────────────────────────────────────


def _pictures(
    changes: Mapping[str, Change], charts: Charts, prefix: str, how: Callable[[Change], str] = moved
) -> Markup:
    """A picture for each change, all on the same scale."""
    ends = [end for change in changes.values() for part in change.parts.values() for end in _ends(part)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = (high - low or 0.01) * _ROOM
    names = [name for name, _ in named_parts(next(iter(changes.values())))]
    spec = charts.add(_part_spec(_bar_styles(names), (low - room, high + room)))
    panels = []
    for position, (name, change) in enumerate(changes.items()):
        id_ = f"{prefix}-{position}"
        charts.drawn[id_] = {"spec": spec, "rows": [_part_row(part, found) for part, found in named_parts(change)]}
        said = "; ".join(f"{part} {signed(found.value)}" for part, found in named_parts(change))
        chart = element("div", id=id_, class_="chart bars", role="img", aria_label=f"{name}: {said}.")
        heading = element("h3", name)
        line = element("p", f"{_capital(how(change))}.", class_="whose")
        panels.append(element("div", heading, line, chart, class_="panel"))
    return element("figure", element("div", *panels, class_="panels"))


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _ends(estimate: Estimate) -> tuple[float, ...]:
    return (estimate.value, *(estimate.interval or ()))


def _part_row(name: str, part: Estimate) -> dict[str, Any]:
    interval = {} if part.interval is None else {"low": round(part.interval[0], 6), "high": round(part.interval[1], 6)}
    return {"part": name, "value": round(part.value, 6), **interval}


def _bar_styles(names: list[str]) -> Styles:
    """The same colour for a part on the whole page, with a square and no line in the legend."""
    styles = dict(palette(list(PARTS.values())))
    return tuple((name, replace(styles[name], shape="square", dash=(0, 99))) for name in names)


def _scale(styles: Styles) -> alt.Scale:
    return alt.Scale(domain=[name for name, _ in styles], range=[style.colour for _, style in styles])


def _part_spec(styles: Styles, domain: tuple[float, float]) -> dict[str, Any]:
    names = [name for name, _ in styles]
    shown = [
        alt.Tooltip("part:N", title="part"),
        alt.Tooltip("value:Q", title="change", format="+.4f"),
        alt.Tooltip("low:Q", title="95 % from", format="+.4f"),
        alt.Tooltip("high:Q", title="to", format="+.4f"),
    ]
    y = alt.Y("part:N", title=None, sort=names, axis=alt.Axis(labelLimit=140, labelOverlap=False))
    x_scale = alt.Scale(domain=[round(end, 6) for end in domain], nice=False)
    x = alt.X("value:Q", title=None, scale=x_scale, axis=alt.Axis(tickCount=4, labelExpr=_LABELS, grid=True))
    base = alt.Chart().encode(y=y)
    bars = base.mark_bar(height={"band": 0.6}).encode(
        x=x, color=alt.Color("part:N", scale=_scale(styles), legend=None), tooltip=shown
    )
    whiskers = base.mark_rule(color=_WHISKER, strokeWidth=1.5).encode(x=alt.X("low:Q"), x2="high:Q", tooltip=shown)
    zero = alt.Chart().mark_rule(color=_WHISKER, strokeWidth=1).encode(x=alt.datum(0))
    return _spec(alt.LayerChart(layer=[bars, zero, whiskers]).properties(height=_ROW_HEIGHT * len(names)))


def _periods(explained: Explained, charts: Charts) -> Markup:
    """The parts of every period, one upon the other."""
    subjects = {_EVERYONE: {t: found.everyone for t, found in explained.periods.items()}}
    if explained.shown.gaps:
        name = next(iter(explained.shown.gaps))
        subjects[f"{name} minus the rest"] = {
            t: found.gaps[name] for t, found in explained.periods.items() if name in found.gaps
        }
    names = [name for name, _ in named_parts(explained.shown.everyone)]
    styles = _bar_styles(names)
    panels = []
    for position, (subject, changes) in enumerate(subjects.items()):
        id_ = f"period-{position}"
        rows = [
            {"t": t, "part": name, "value": round(part.value, 6), "change": round(change.change.value, 6)}
            for t, change in changes.items()
            for name, part in named_parts(change)
        ]
        charts.drawn[id_] = {"spec": charts.add(_period_spec(styles)), "rows": rows}
        said = "; ".join(f"period {t} {signed(change.change.value)}" for t, change in changes.items())
        chart = element("div", id=id_, class_="chart", role="img", aria_label=f"Change of {subject}: {said}.")
        panels.append(element("div", element("h3", subject), chart, class_="panel"))
    return section(
        "All periods",
        _note(
            "The change from each period's test to the next: what raised the number stands above the line, what "
            "lowered it below; the diamond is the change itself."
        ),
        element("figure", legend(styles), element("div", *panels, class_="panels")),
        id_="periods",
    )


def _period_spec(styles: Styles) -> dict[str, Any]:
    names = [name for name, _ in styles]
    axis = alt.Axis(
        titleAngle=0,
        titleAlign="left",
        titleAnchor="end",
        titleBaseline="bottom",
        titleX=-24,
        titleY=-6,
        labelExpr=_LABELS,
    )
    base = alt.Chart().encode(x=alt.X("t:O", title="period", axis=alt.Axis(labelAngle=0)))
    order = alt.Order("rank:Q")
    bars = (
        base.transform_calculate(rank=f"indexof({names!r}, datum.part)")
        .mark_bar(width={"band": 0.7})
        .encode(
            y=alt.Y("value:Q", title="change", stack="zero", axis=axis),
            color=alt.Color("part:N", scale=_scale(styles), legend=None),
            order=order,
            tooltip=[
                alt.Tooltip("t:O", title="period"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("value:Q", title="change", format="+.4f"),
            ],
        )
    )
    net = base.mark_point(shape="diamond", filled=True, size=70, opacity=1, color="#fff", stroke="#1b1e22").encode(
        y=alt.Y("change:Q", aggregate="max"),
        tooltip=[alt.Tooltip("t:O", title="period"), alt.Tooltip("max(change):Q", title="change", format="+.4f")],
    )
    zero = alt.Chart().mark_rule(color=_WHISKER, strokeWidth=1).encode(y=alt.datum(0))
    return _spec(alt.LayerChart(layer=[bars, zero, net]).properties(height=_PERIODS_HEIGHT))


def _spec(chart: alt.LayerChart) -> dict[str, Any]:
    spec = chart.properties(width="container", data=alt.InlineData(values=[])).to_dict()
    return {key: part for key, part in spec.items() if key not in ("config", "datasets")} | {"data": {"values": []}}


# ── tables ───────────────────────────────────────────────────────────────────────────────


def _numbers(explained: Explained) -> Markup:
    """A row for each part, a column for each of everyone, the groups and the gaps."""
    shown = explained.shown
    changes = {_EVERYONE: shown.everyone, **shown.groups, **_gap_changes(explained)}
    columns = [("", ""), *((name, "n") for name in changes)]
    both = [levels(change) for change in changes.values()]
    totals = [
        row(columns, ["before", *(before for before, _ in both)]),
        row(columns, ["after", *(after for _, after in both)]),
        row(columns, ["change", *(_estimate(change.change) for change in changes.values())]),
    ]
    parts = [
        row(columns, [name, *(_estimate(change.parts.get(key)) for change in changes.values())])
        for key, name in PARTS.items()
        if key in shown.everyone.parts
    ]
    bodies = [body(totals), body(parts, heading=group_heading("Of which", n_columns=len(columns)))]
    if shown.everyone.lever_worth is not None:
        worth = ["the lever by now", *(_estimate(change.lever_worth) for change in changes.values())]
        heading = group_heading("Against the same update without it", n_columns=len(columns))
        bodies.append(body([row(columns, worth)], heading=heading))
    caption = f"{explained.metric.upper()} {TASKS[explained.task]}, and what moved it; below each its 95 % interval"
    numbers = table(caption=caption, columns=columns, bodies=bodies, id_="numbers-table")
    return section("All numbers", numbers, id_="numbers")


def _gap_changes(explained: Explained) -> dict[str, Change]:
    """The gaps by what they are called; of two, each the other's rest, the first says all."""
    gaps = explained.shown.gaps
    named = {f"{name} minus the rest": gap for name, gap in gaps.items()}
    return dict(list(named.items())[:1]) if len(gaps) == 2 else named


def _estimate(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return "–"
    value = signed(estimate.value)
    if estimate.interval is None:
        return element("span", value)
    low, high = estimate.interval
    interval = element("span", f"{signed(low)} to {signed(high)}", class_="interval")
    return element("span", value if may_be_chance(estimate) else element("b", value), interval)


def _mix(explained: Explained) -> Markup:
    columns = [
        (explained.group, ""),
        ("users before", "n"),
        ("after", "n"),
        ("newcomers before", "n"),
        ("after", "n"),
        ("new items before", "n"),
        ("after", "n"),
    ]
    rows = [row(columns, [name or _EVERYONE, *_mix_cells(mix)]) for name, mix in explained.shown.mixes.items()]
    caption = "Tested users, the share of newcomers, and the share of what they did that concerns new items"
    return section(
        "Who was tested", table(caption=caption, columns=columns, bodies=[body(rows)], id_="mix-table"), id_="mix"
    )


def _mix_cells(mix: Mix) -> list[Cell]:
    users = [f"{n:,}" for n in mix.n_users]
    newcomers = [_NOT_REPORTED if share is None else f"{100 * share:.1f} %" for share in mix.newcomers]
    items = [f"{100 * share:.1f} %" for share in mix.new_items]
    return [*users, *newcomers, *items]


def _words(explained: Explained) -> Markup:
    there = [key for key in PARTS if key in explained.shown.everyone.parts]
    entries = [part for key in there for part in (element("dt", _capital(PARTS[key])), element("dd", MEANINGS[key]))]
    if explained.shown.everyone.lever_worth is not None:
        entries += [
            element("dt", "The lever's worth"),
            element(
                "dd",
                "The model in force minus the same update made without anything done for fairness: a level, while the "
                "part above is how much that changed.",
            ),
        ]
    entries += [
        element("dt", "~, and numbers that are not bold"),
        element("dd", "The 95 % interval contains 0: chance alone could have done it."),
    ]
    return section("Words", element("dl", *entries), id_="words")
