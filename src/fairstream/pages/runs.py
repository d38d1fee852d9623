"""The page of `fairstream report`: runs compared, by period and by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairstream.display import Table
from fairstream.pages.charts import Chart, Charts, page_spec, palette, rounded
from fairstream.pages.rendering import render
from fairstream.pages.score_tables import Document, difference_table, group_table
from fairstream.plotting import line_chart
from fairstream.text import anything, counted, number, plain

if TYPE_CHECKING:
    from fairstream.experiments import Comparison

_HEIGHT = 240


def runs_page(
    runs: Mapping[str, Document], *, task: str, metric: str, comparison: Comparison | None, notes: Sequence[str] = ()
) -> str:
    """Return the page of runs by label: each a document of one run, or of several that differ only in their seed.

    `comparison` is None if the runs are not comparable.
    """
    charts, data = Charts(), next(iter(runs.values()))["data"]
    return render(
        "runs.html",
        title=f"{counted(len(runs), 'method')} compared" if len(runs) > 1 else next(iter(runs)),
        data=data,
        task=task,
        metric=metric,
        verdicts=[] if comparison is None else comparison.verdicts(),
        notes=notes,
        styles=palette(list(runs)),
        front=None if comparison is None else _front(comparison, charts),
        periods=_periods(runs, task, metric, charts),
        comparison_tables={}
        if comparison is None
        else {
            "contenders": comparison.table(),
            **({} if (table := comparison.regret_table()) is None else {"regret": table}),
            "differences": difference_table(comparison, comparison.contenders[0].label),
        },
        group_table=group_table(runs, task, metric) if data["groups"] else None,
        metric_table=_metric_table(runs, task),
        settings=_settings(runs),
        charts=charts,
    )


def _front(comparison: Comparison, charts: Charts) -> Chart:
    chart = comparison.plot()
    label = "; ".join(
        f"{one.label}: {comparison.metric} {number(one.performance.value)}, gap {number(one.disparity.value)}"
        for one in comparison.contenders
    )
    return charts.add("front", page_spec(chart, _HEIGHT), map(rounded, chart.data.values), f"{label}.")


def _periods(runs: Mapping[str, Document], task: str, metric: str, charts: Charts) -> list[Chart]:
    means, gaps = [], []
    for label, document in runs.items():
        for result in [document["pretrained"], *document["periods"]]:
            score, point = result["tasks"][task][metric], {"method": label, "t": result["t"]}
            means.append({**point, "value": score["mean"]})
            if score.get("gaps"):  # a group that is ahead is not treated unfairly
                gaps.append({**point, "value": max(-gap["value"] for gap in score["gaps"].values())})
    drawn = {"quality": (metric.upper(), means), "gap": ("how far the worst-served group is behind the rest", gaps)}
    panels = []
    for id_, (title, rows) in drawn.items():
        if rows:
            last = {row["method"]: row["value"] for row in rows if row["value"] is not None}
            values = "; ".join(f"{method} {number(value)}" for method, value in last.items())
            spec = page_spec(line_chart(rows, series="method"), _HEIGHT)
            label = f"{title}, in the last period: {values}."
            panels.append(charts.add(id_, spec, map(rounded, rows), label, title=title))
    return panels


def _metric_table(runs: Mapping[str, Document], task: str) -> Table:
    names = list(dict.fromkeys(name for document in runs.values() for name in document["summary"][task]))
    rows = [
        [label, *(number(document["summary"][task].get(name, {}).get("mean")) for name in names)]
        for label, document in runs.items()
    ]
    return Table(["method", *(name.upper() for name in names)], rows, "Mean over the periods")


def _settings(runs: Mapping[str, Document]) -> dict[str, Table]:
    """Return the options in which the runs differ, and those that they share."""
    first = next(iter(runs.values()))
    names = list(dict.fromkeys(name for document in runs.values() for name in document["config"]))
    values = {name: [anything(document["config"].get(name), plain) for document in runs.values()] for name in names}
    differing = [[name, *each] for name, each in values.items() if len(set(each)) > 1]
    shared = {name: each[0] for name, each in values.items() if len(set(each)) == 1}
    shared |= {"events": first["data"]["sha256"], **{name: anything(v) for name, v in first["versions"].items()}}
    tables = {}
    if differing:
        tables["differing"] = Table(["option", *runs], differing, "Different options", align="l" * (len(runs) + 1))
    same = [[name, value] for name, value in shared.items()]
    tables["shared"] = Table(["option", "in all runs"], same, "Equal options, data and versions", align="ll")
    return tables
