"""`fairstream explain`: what moved in the last period, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from fairstream.cli.console import check_json, make_console, new_table, print_lines, write_result
from fairstream.cli.options import Json, Metric, Output, Quiet, task_option
from fairstream.cli.workspaces import opened
from fairstream.evaluation import Change, Estimate, Explained
from fairstream.evaluation.score_cells import CHANCE_MARK
from fairstream.experiments import check_writable, explain_run, write_file
from fairstream.pages.change_words import PARTS, levels, may_be_chance, summary
from fairstream.pages.vega import need_charts
from fairstream.text import signed

_WORKSPACE_FILE = "fairstream.toml"


def explain(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|WORKSPACE",
            help="A run made with `--explain` (its JSON file, its file in a store, or a store with one run), "
            "or the folder of a workspace.",
            show_default=False,
        ),
    ],
    output: Output = Path("explain.html"),
    task: Annotated[Literal["event", "next"] | None, task_option("the run's first")] = None,
    metric: Metric = None,
    t: Annotated[
        int | None, typer.Option("--t", help="Number of the period to explain.", show_default="the last")
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Say what moved in the last period: which groups gained or lost, and why.

    The change is split into new people, the length of histories, new items, drift, what the update learned and
    what the fairness lever did; the parts add up. Writes a page with pictures. Groups with too few tested users
    are not reported. The page needs the extra: `pip install fairstream[report]`.
    """
    check_json(json)
    check_writable(output)
    need_charts()
    if (source / _WORKSPACE_FILE).is_file():
        with opened(source) as workspace:
            from fairstream.service.explain import explain_workspace  # noqa: PLC0415 (an extra)

            explained = explain_workspace(workspace, t=t)
    else:
        explained = explain_run(source, task=task, metric=metric, t=t)
    from fairstream.pages.change_page import page_of  # noqa: PLC0415 (an extra)

    console = make_console(quiet=quiet, json=json)
    print_lines(console, *summary(explained))
    console.print(_table(explained))
    print_lines(console, *explained.notes)
    write_file(output, page_of(explained).encode())
    print_lines(console, f"{output}: open it in any browser.")
    write_result({**explained.to_dict(), "summary": summary(explained)}, json)


def _table(explained: Explained) -> Table:
    shown = explained.shown
    keys = [key for key in PARTS if key in shown.everyone.parts]
    table = new_table(
        f"{explained.metric}: {explained.tested[1]}, after {explained.tested[0]}",
        caption=f"the parts add up to the change; {CHANCE_MARK} the 95 % interval contains 0",
    )
    table.add_column(explained.group, no_wrap=True)
    for heading in ("before", "after", "change", *(PARTS[key] for key in keys)):
        table.add_column(heading, justify="right")
    rows = {"everyone": shown.everyone, **shown.groups}
    for name, change in rows.items():
        table.add_row(name, *_cells(change, keys))
    table.add_section()
    for name, change in shown.gaps.items():
        table.add_row(f"{name} − rest", *_cells(change, keys))
    return table


def _cells(change: Change, keys: Sequence[str]) -> list[str]:
    parts = (change.parts.get(key) for key in keys)
    return [*levels(change), *map(_cell, (change.change, *parts))]


def _cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return signed(estimate.value) + (CHANCE_MARK if may_be_chance(estimate) else " ")
