"""The page of `fairstream explain`: what changed, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairstream.evaluation import Estimate
from fairstream.pages.charts import Chart, Charts, Styles, page_spec, palette, rounded
from fairstream.pages.rendering import macros, render
from fairstream.plotting import altair
from fairstream.text import sentence, signed
from fairstream.tools.explain import Change, Explained

PARTS = {
    "new_people": "new people",
    "histories": "length of histories",
    "new_items": "new items",
    "drift": "drift and ageing",
    "learning": "the update",
    "lever": "fairness lever",
}
"""The names of the parts, in order."""
TASKS = {"event": "at each event", "moment": "at each moment", "next": "with one list for the period"}
_EVERYONE = "Everyone"
_ROW_HEIGHT, _PERIODS_HEIGHT = 30, 200
_MARGIN = 0.05
_GREY = "#767676"
_LABELS = "datum.value === 0 ? '0' : format(datum.value, '+.3~f')"


def summary(explained: Explained) -> list[str]:
    """Return a few sentences on everyone, the groups, the gap, and the lever."""
    moves = {name: gap.change for name, gap in explained.shown.gaps.items()}
    # Of two gaps the advantaged group's; of more the largest change, beyond chance if there is one.
    gap = next(iter(moves), None)
    if len(moves) > 2:
        gap = max(moves, key=lambda name: (not moves[name].includes_zero, abs(moves[name].value)))
    words = macros("change.txt").summary(explained, explained.shown, TASKS[explained.task], _named, gap)
    return str(words).splitlines()


def change_page(explained: Explained) -> str:
    """Return the page."""
    charts, shown, words = Charts(), explained.shown, macros("change.txt")
    gaps = {f"{name} minus the rest": gap for name, gap in shown.gaps.items()}
    if len(gaps) == 2:  # each is the other's rest
        gaps = dict(list(gaps.items())[:1])
    subjects = {_EVERYONE: shown.everyone, **shown.groups}
    names = {name for explanation in explained.periods.values() for name in explanation.groups}
    styles = _bar_styles(shown.everyone)
    return render(
        "change.html",
        title=f"What changed: {explained.name}",
        explained=explained,
        metric=explained.metric.upper(),
        task=TASKS[explained.task],
        sentences=summary(explained),
        styles=styles,
        pictures=_pictures(subjects, charts, styles, "part", words.moved),
        gap_pictures=_pictures(gaps, charts, styles, "gap", words.gap_moved) if gaps else [],
        period_pictures=_periods(explained, charts, styles) if len(explained.periods) > 1 else [],
        too_few=sorted(names - set(shown.groups)),
        changes=subjects | gaps,
        parts={key: name for key, name in PARTS.items() if key in shown.everyone.parts},
        mixes={name or _EVERYONE: mix for name, mix in shown.mixes.items()},
        has_lever=shown.everyone.lever_worth is not None,
        charts=charts,
    )


def _named(change: Change) -> list[tuple[str, Estimate]]:
    return [(name, change.parts[key]) for key, name in PARTS.items() if key in change.parts]


def _pictures(
    changes: Mapping[str, Change], charts: Charts, styles: Styles, prefix: str, how: Callable[[Change], str]
) -> list[Chart]:
    """Return a chart of the parts of each change, all on one scale."""
    parts = [part for change in changes.values() for part in change.parts.values()]
    ends = [0.0, *(end for part in parts for end in (part.value, *(part.interval or ())))]
    margin = (max(ends) - min(ends) or 0.01) * _MARGIN
    spec = part_spec(styles, (min(ends) - margin, max(ends) + margin))
    pictures = []
    for position, (name, change) in enumerate(changes.items()):
        rows = []
        for part, estimate in _named(change):
            interval = {"low": estimate.low, "high": estimate.high} if estimate.interval else {}
            rows.append(rounded({"part": part, "value": estimate.value, **interval}))
        label = f"{name}: {'; '.join(f'{part} {signed(estimate.value)}' for part, estimate in _named(change))}."
        pictures.append(charts.add(f"{prefix}-{position}", spec, rows, label, title=name, note=sentence(how(change))))
    return pictures


def _bar_styles(change: Change) -> Styles:
    """Return one colour for each part on the whole page, as squares without a line."""
    styles = palette(list(PARTS.values()))
    names = [name for name, _ in _named(change)]
    return tuple((name, style._replace(shape="square", dash=(0, 99))) for name, style in styles if name in names)


def _colour(styles: Styles) -> Any:
    alt, (names, looks) = altair(), zip(*styles, strict=True)
    return alt.Color("part:N", scale=alt.Scale(domain=names, range=[look.colour for look in looks]), legend=None)


def _tooltip(*fields: tuple[str, str]) -> list[Any]:
    alt = altair()
    return [
        alt.Tooltip(field, title=title, format="+.4f" if field[-1] == "Q" else alt.Undefined) for field, title in fields
    ]


def part_spec(styles: Styles, domain: tuple[float, float]) -> dict[str, Any]:
    """Return a chart of parts as bars with intervals: rows of `part`, `value`, `low`, `high`."""
    alt, names = altair(), [name for name, _ in styles]
    shown = _tooltip(("part:N", "part"), ("value:Q", "change"), ("low:Q", "95 % from"), ("high:Q", "to"))
    y = alt.Y("part:N", title=None, sort=names, axis=alt.Axis(labelLimit=140, labelOverlap=False))
    x_scale = alt.Scale(domain=[round(end, 6) for end in domain], nice=False)
    x = alt.X("value:Q", title=None, scale=x_scale, axis=alt.Axis(tickCount=4, labelExpr=_LABELS, grid=True))
    base = alt.Chart().encode(y=y)
    bars = base.mark_bar(height={"band": 0.6}).encode(x=x, color=_colour(styles), tooltip=shown)
    whiskers = base.mark_rule(color=_GREY, strokeWidth=1.5).encode(x=alt.X("low:Q"), x2="high:Q", tooltip=shown)
    zero = alt.Chart().mark_rule(color=_GREY, strokeWidth=1).encode(x=alt.datum(0))
    layers = alt.LayerChart(layer=[bars, zero, whiskers], data=alt.InlineData(values=[]))
    return page_spec(layers, _ROW_HEIGHT * len(names))


def _periods(explained: Explained, charts: Charts, styles: Styles) -> list[Chart]:
    """Return the parts of every period, stacked: of everyone, and of the first gap."""
    subjects = {_EVERYONE: {t: explanation.everyone for t, explanation in explained.periods.items()}}
    for group in list(explained.shown.gaps)[:1]:
        gaps = {t: explanation.gaps.get(group) for t, explanation in explained.periods.items()}
        subjects[f"{group} minus the rest"] = {t: gap for t, gap in gaps.items() if gap is not None}
    spec, pictures = _period_spec(styles), []
    for position, (subject, changes) in enumerate(subjects.items()):
        rows = [
            rounded({"t": t, "part": name, "value": part.value, "change": change.change.value})
            for t, change in changes.items()
            for name, part in _named(change)
        ]
        values = "; ".join(f"period {t} {signed(change.change.value)}" for t, change in changes.items())
        pictures.append(charts.add(f"period-{position}", spec, rows, f"Change of {subject}: {values}.", title=subject))
    return pictures


def _period_spec(styles: Styles) -> dict[str, Any]:
    alt = altair()
    base = alt.Chart().encode(x=alt.X("t:O", title="period", axis=alt.Axis(labelAngle=0)))
    order = base.transform_calculate(rank=f"indexof({[name for name, _ in styles]!r}, datum.part)")
    bars = order.mark_bar(width={"band": 0.7}).encode(
        y=alt.Y("value:Q", title="change", stack="zero", axis=alt.Axis(labelExpr=_LABELS)),
        color=_colour(styles),
        order=alt.Order("rank:Q"),
        tooltip=_tooltip(("t:O", "period"), ("part:N", "part"), ("value:Q", "change")),
    )
    net = base.mark_point(shape="diamond", filled=True, size=70, opacity=1, color="#fff", stroke="#1b1e22").encode(
        y=alt.Y("change:Q", aggregate="max"), tooltip=_tooltip(("t:O", "period"), ("max(change):Q", "change"))
    )
    zero = alt.Chart().mark_rule(color=_GREY, strokeWidth=1).encode(y=alt.datum(0))
    return page_spec(alt.LayerChart(layer=[bars, zero, net], data=alt.InlineData(values=[])), _PERIODS_HEIGHT)
