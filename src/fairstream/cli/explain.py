"""`fairstream explain`: what moved in the last period, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from fairstream.cli.console import Output
from fairstream.cli.options import Page, metric_option, task_option
from fairstream.display import Table
from fairstream.evaluation.score_cells import CHANCE_MARK
from fairstream.experiments import explain_run
from fairstream.files import check_writable, write_file
from fairstream.pages.change import PARTS, change_page, summary
from fairstream.pages.rendering import require_report
from fairstream.text import MISSING, number, signed
from fairstream.tools.explain import Change, Explained


def explain(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run made with `--explain`: its JSON file, its file in a store, or a store with one run.",
            show_default=False,
        ),
    ],
    page: Page = Path("explain.html"),
    task: Annotated[Literal["event", "next"] | None, task_option("the run's first")] = None,
    metric: Annotated[str | None, metric_option("the run's first")] = None,
    t: Annotated[
        int | None, typer.Option("--t", help="Number of the period to explain.", show_default="the last")
    ] = None,
    *,
    output: Output,
) -> None:
    """Say what moved in the last period: which groups gained or lost, and why.

    The change is split into new people, the length of histories, new items, drift, what the update learned and
    what the fairness lever did; the parts add up. Writes a page with pictures. Groups with too few tested users
    are not reported. The page needs the extra: `pip install fairstream[report]`.
    """
    check_writable(page)
    require_report()
    explained = explain_run(source, task=task, metric=metric, t=t)
    output.print(*summary(explained), _table(explained), *explained.notes)
    write_file(page, change_page(explained).encode())
    output.print(f"{page}: open it in any browser.")
    output.write({**explained.to_dict(), "summary": summary(explained)})


def _table(explained: Explained) -> Table:
    shown = explained.shown
    keys = [key for key in PARTS if key in shown.everyone.parts]
    headings = [explained.group, "before", "after", "change", *(PARTS[key] for key in keys)]
    return Table(
        headings,
        [
            *([name, *_cells(change, keys)] for name, change in {"everyone": shown.everyone, **shown.groups}.items()),
            [],
            *([f"{name} − rest", *_cells(change, keys)] for name, change in shown.gaps.items()),
        ],
        f"{explained.metric}: {explained.tested[1]}, after {explained.tested[0]}",
        f"the parts add up to the change; {CHANCE_MARK} the 95 % interval contains 0",
        align="l" + "R" * (len(headings) - 1),
    )


def _cells(change: Change, keys: Sequence[str]) -> list[str]:
    estimates = [change.change, *(change.parts.get(key) for key in keys)]
    cells = [
        MISSING if each is None else signed(each.value) + (CHANCE_MARK if each.includes_zero else " ")
        for each in estimates
    ]
    return [number(change.before), number(change.after), *cells]
