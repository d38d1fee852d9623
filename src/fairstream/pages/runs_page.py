"""The page of `fairstream report`: anybody's runs, compared, period by period and group by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from fairstream.evaluation.by_group import ordered
from fairstream.pages.document import Charts, whole_page
from fairstream.pages.format import anything, counted, number, signed
from fairstream.pages.markup import Markup, element
from fairstream.pages.series import Style, Styles, legend, palette
from fairstream.pages.tables import Cell, body, row, section, table

TASKS = {
    "event": "at each event of the next period",
    "next": "on the next period, one list a user",
    "remain": "on everything after the period",
}
_HEIGHT = 240
Document = Mapping[str, Any]


def runs_page(
    runs: Mapping[str, Document], *, task: str, metric: str, comparison: Document | None, notes: Sequence[str] = ()
) -> str:
    """The page as text. The same runs give the same page, byte for byte.

    Parameters
    ----------
    runs
        Label → the document of a run, or of several that differ in their seed alone.
    task, metric
        What is shown; all runs have both.
    comparison
        The runs compared with each other: `contenders`, `differences`, `verdicts`, `n_users`, `n_groups` and `seeds`;
        None where they cannot be.
    notes
        Sentences for the reader.

    """
    charts, styles = Charts(), palette(list(runs))
    groups = ordered(next(iter(runs.values()))["data"]["groups"])
    sections = {
        "comparison": None if comparison is None else _comparison(comparison, metric, styles, charts),
        "periods": _periods(runs, task, metric, styles, charts),
        "groups": _groups(runs, task, metric, groups) if groups else None,
        "metrics": _metrics(runs, task),
        "settings": _settings(runs),
    }
    names = {
        "comparison": "Quality and disparity",
        "periods": "Period by period",
        "groups": "Groups",
        "metrics": "All metrics",
        "settings": "Settings and data",
    }
    shown = {id_: part for id_, part in sections.items() if part is not None}
    title = f"{counted(len(runs), 'method')} compared" if len(runs) > 1 else next(iter(runs))
    header = element(
        "header",
        element("h1", title),
        element("p", _what(runs, task, metric), class_="note"),
        *(element("p", sentence, class_="summary") for sentence in (comparison or {}).get("verdicts", ())),
        *(_note(sentence) for sentence in notes),
        id="summary",
    )
    return whole_page(
        title,
        header=header,
        contents=[(id_, names[id_]) for id_ in shown],
        main=element("main", *(section(names[id_], part, id_=id_) for id_, part in shown.items()), id="main"),
        charts=charts,
        class_="short",
    )


def _note(*words: str) -> Markup:
    return element("p", *words, class_="note")


def _what(runs: Mapping[str, Document], task: str, metric: str) -> str:
    data = next(iter(runs.values()))["data"]
    name = data["name"] or "the events"
    sizes = f"{data['n_events']:,} events of {data['n_users']:,} users with {data['n_items']:,} items"
    groups = f", by {data['group']}" if data["groups"] else ", without groups"
    return f"{metric.upper()} {TASKS[task]}, on {name}: {sizes}{groups}."


# ── the comparison ───────────────────────────────────────────────────────────────────────


def _comparison(comparison: Document, metric: str, styles: Styles, charts: Charts) -> Markup:
    gap = _gap_name(comparison["n_groups"])
    points = [
        {
            "method": one["label"],
            **{
                f"{name}{suffix}": _rounded(one[name].get(part))
                for name in ("performance", "disparity")
                for suffix, part in (("", "value"), ("_low", "low"), ("_high", "high"))
            },
        }
        for one in comparison["contenders"]
    ]
    charts.drawn["front"] = {"spec": charts.add(_front_spec(styles, metric, gap)), "rows": points}
    said = "; ".join(
        f"{p['method']}: {metric} {number(p['performance'])}, {gap} {number(p['disparity'])}" for p in points
    )
    picture = element("div", id="front", class_="chart", role="img", aria_label=f"{said}.")
    columns = [
        ("method", ""),
        (metric.upper(), "n"),
        ("95 % interval", "n"),
        (gap, "n"),
        ("95 % interval", "n"),
        *((("furthest behind", ""),) if comparison["n_groups"] > 2 else ()),
        ("Pareto front", ""),
    ]
    rows = [
        row(
            columns,
            [
                one["label"],
                *_interval(one["performance"]),
                *_interval(one["disparity"]),
                *((one["behind"],) if comparison["n_groups"] > 2 else ()),
                "yes" if one["is_on_front"] else "",
            ],
        )
        for one in comparison["contenders"]
    ]
    seeds = counted(len(comparison["seeds"]), "seed")
    caption = f"{counted(comparison['n_users'], 'user')}, {seeds}; the same users, periods and seeds for all"
    first = comparison["contenders"][0]["label"]
    return element(
        "div",
        _note("Higher is better, further to the left is fairer; the lines are 95 % intervals."),
        element("figure", legend(styles), picture),
        table(caption=caption, columns=columns, bodies=[body(rows)], id_="contenders"),
        _differences(comparison, first, metric, gap),
    )


def _differences(comparison: Document, against: str, metric: str, gap: str) -> Markup:
    columns = [("method", ""), (metric.upper(), "n"), ("95 % interval", "n"), (gap, "n"), ("95 % interval", "n")]
    rows = [
        row(columns, [pair["label"], *_interval(pair["performance"], signed), *_interval(pair["disparity"], signed)])
        for pair in comparison["differences"]
        if pair["against"] == against
    ]
    caption = f"Minus {against}, on the same users and seeds; an interval that contains 0 may be chance"
    return table(caption=caption, columns=columns, bodies=[body(rows)], id_="differences")


def _gap_name(n_groups: int) -> str:
    return "mean |PD|" if n_groups == 2 else "behind by"


def _interval(part: Document, form: Callable[[float], str] = number) -> list[Cell]:
    low, high = part.get("low"), part.get("high")
    return [form(part["value"]), "–" if low is None or high is None else f"{form(low)} to {form(high)}"]


def _front_spec(styles: Styles, metric: str, gap: str) -> dict[str, Any]:
    base = alt.Chart().encode(_colour(styles))
    across = alt.X("disparity:Q", title=gap, scale=alt.Scale(zero=False))
    up = alt.Y("performance:Q", title=metric.upper(), scale=alt.Scale(zero=False))
    shown = [
        alt.Tooltip("method:N"),
        alt.Tooltip("performance:Q", title=metric, format=".4f"),
        alt.Tooltip("disparity:Q", title=gap, format=".4f"),
    ]
    points = base.mark_point(filled=True, size=90, opacity=1).encode(across, up, _shape(styles), tooltip=shown)
    wide = base.mark_rule().encode(alt.X("disparity_low:Q"), alt.X2("disparity_high:Q"), up)
    tall = base.mark_rule().encode(across, alt.Y("performance_low:Q"), alt.Y2("performance_high:Q"))
    return _spec(alt.LayerChart(layer=[wide, tall, points]))


# ── periods ──────────────────────────────────────────────────────────────────────────────


def _periods(runs: Mapping[str, Document], task: str, metric: str, styles: Styles, charts: Charts) -> Markup:
    values, gaps = [], []
    for label, document in runs.items():
        for result in [document["pretrained"], *document["periods"]]:
            score = result["tasks"][task][metric]
            at = {"method": label, "t": result["t"]}
            values.append({**at, "value": _rounded(score["mean"])})
            if gaps_of := score.get("gaps"):  # a group that is ahead makes nobody unfair
                gaps.append({**at, "value": _rounded(max(-gap["value"] for gap in gaps_of.values()))})
    panels = [_panel("quality", metric.upper(), values, styles, charts)]
    if gaps:
        panels.append(_panel("gap", "how far the worst-served group is behind the rest", gaps, styles, charts))
    return element(
        "div",
        _note("Period 0 is the model after pre-training; each period's model is tested on what comes after it."),
        element("figure", legend(styles), element("div", *panels, class_="panels")),
    )


def _panel(id_: str, title: str, rows: list[dict[str, Any]], styles: Styles, charts: Charts) -> Markup:
    charts.drawn[id_] = {"spec": charts.add(_line_spec(styles, title)), "rows": rows}
    last: dict[str, float] = {entry["method"]: entry["value"] for entry in rows if entry["value"] is not None}
    said = "; ".join(f"{method} {number(value)}" for method, value in last.items())
    chart = element("div", id=id_, class_="chart", role="img", aria_label=f"{title}, in the last period: {said}.")
    return element("div", element("h3", title), chart, class_="panel")


def _line_spec(styles: Styles, title: str) -> dict[str, Any]:
    base = alt.Chart().encode(
        alt.X("t:O", title="period", axis=alt.Axis(labelAngle=0)),
        alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        _colour(styles),
    )
    shown = [
        alt.Tooltip("method:N"),
        alt.Tooltip("t:O", title="period"),
        alt.Tooltip("value:Q", title=title, format=".4f"),
    ]
    points = base.mark_point(filled=True, size=50, opacity=1).encode(_shape(styles), tooltip=shown)
    return _spec(alt.LayerChart(layer=[base.mark_line(), points]))


# ── tables ───────────────────────────────────────────────────────────────────────────────


def _groups(runs: Mapping[str, Document], task: str, metric: str, groups: Sequence[str]) -> Markup:
    columns = [
        ("method", ""),
        ("group", ""),
        (metric.upper(), "n"),
        ("minus the rest", "n"),
        ("95 % interval", "n"),
        ("p", "n"),
    ]
    rows = []
    for label, document in runs.items():
        score = document["summary"][task][metric]
        for name in groups:
            mean, gap = score["by_group"].get(name), (score.get("gaps") or {}).get(name)
            cells = ["–" if mean is None else number(mean), *_gap_cells(gap)]
            rows.append(row(columns, [label, name, *cells]))
    caption = "Each group, mean over the periods; – where too few of its users were tested"
    return table(caption=caption, columns=columns, bodies=[body(rows)], id_="groups-table")


def _gap_cells(gap: Document | None) -> list[Cell]:
    if gap is None:
        return ["–", "–", "–"]
    interval, p_value = gap.get("interval"), gap.get("p_value")
    between = "–" if interval is None else f"{signed(interval[0])} to {signed(interval[1])}"
    return [signed(gap["value"]), between, "–" if p_value is None else f"{p_value:.3f}"]


def _metrics(runs: Mapping[str, Document], task: str) -> Markup:
    names = list(dict.fromkeys(name for document in runs.values() for name in document["summary"][task]))
    columns = [("method", ""), *((name.upper(), "n") for name in names)]
    rows = [
        row(columns, [label, *(_mean(document["summary"][task].get(name)) for name in names)])
        for label, document in runs.items()
    ]
    return table(caption="Mean over the periods", columns=columns, bodies=[body(rows)], id_="metrics-table")


def _mean(score: Document | None) -> str:
    return "–" if score is None or score["mean"] is None else number(score["mean"])


def _settings(runs: Mapping[str, Document]) -> Markup:
    """Every option that is not the same in all runs, then what all of them share."""
    names = list(dict.fromkeys(name for document in runs.values() for name in document["config"]))
    given = {name: [anything(document["config"].get(name)) for document in runs.values()] for name in names}
    columns = [("option", ""), *((label, "") for label in runs)]
    differing = [row(columns, [name, *each]) for name, each in given.items() if len(set(each)) > 1]
    shared = {name: each[0] for name, each in given.items() if len(set(each)) == 1}
    first = next(iter(runs.values()))
    about = {"events": first["data"]["sha256"], **{name: anything(value) for name, value in first["versions"].items()}}
    same = [("option", ""), ("in all runs", "")]
    tables = [
        table(
            caption="Options, data and versions that are the same",
            columns=same,
            bodies=[body([row(same, [name, value]) for name, value in {**shared, **about}.items()])],
            id_="shared",
        )
    ]
    if differing:
        caption = "Options in which the runs differ"
        tables.insert(0, table(caption=caption, columns=columns, bodies=[body(differing)], id_="differing"))
    return element("div", *tables)


# ── marks ────────────────────────────────────────────────────────────────────────────────


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _colour(styles: Styles) -> alt.Color:
    return alt.Color("method:N", legend=None, scale=_scale(styles, lambda style: style.colour))


def _shape(styles: Styles) -> alt.Shape:
    return alt.Shape("method:N", legend=None, scale=_scale(styles, lambda style: style.shape))


def _scale(styles: Styles, of: Callable[[Style], str]) -> alt.Scale:
    return alt.Scale(domain=[name for name, _ in styles], range=[of(style) for _, style in styles])


def _spec(chart: alt.LayerChart) -> dict[str, Any]:
    spec = chart.properties(width="container", height=_HEIGHT, data=alt.InlineData(values=[])).to_dict()
    return {key: part for key, part in spec.items() if key not in ("config", "datasets")} | {"data": {"values": []}}
