"""`fairstream explain`: what moved in the last period, or why a group is behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from fairstream.cli.console import Output
from fairstream.cli.options import Page, is_workspace, metric_option, task_option
from fairstream.display import Table
from fairstream.errors import ConfigurationError
from fairstream.evaluation import GapExplanation
from fairstream.evaluation.score_cells import CHANCE_MARK
from fairstream.experiments import explain_run
from fairstream.experiments.explain import explain_gap, read_one
from fairstream.files import check_writable, write_file
from fairstream.pages.change import PARTS, change_page, summary
from fairstream.pages.gap import gap_page, group_table
from fairstream.pages.rendering import require_report
from fairstream.text import MISSING, number, signed
from fairstream.tools.explain import Change, Explained


def explain(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run: its JSON file, its file in a store, or a store with one run; `--between periods` needs one "
            "made with `--explain`.",
            show_default=False,
        ),
    ],
    between: Annotated[
        Literal["periods", "groups"],
        typer.Option(
            help="periods: what changed from one period to the next; groups: why a group is behind.",
            case_sensitive=False,
        ),
    ] = "periods",
    page: Page = Path("explain.html"),
    task: Annotated[Literal["event", "moment", "next"] | None, task_option("the run's first")] = None,
    metric: Annotated[str | None, metric_option("the run's first")] = None,
    t: Annotated[
        int | None, typer.Option("--t", help="Number of the period to explain.", show_default="the last")
    ] = None,
    *,
    output: Output,
) -> None:
    """Say what moved in the last period, or why a group is behind.

    Between periods, the change is split into new people, the length of histories, new items, drift, what the update
    learned and what the fairness lever did. Between groups, the gap is split into what remains when each group gets
    its best attainable lists and what can be gained, and into what differences between people explain and what
    remains between like people. The parts add up. Writes a page with pictures. Groups with too few tested users are
    not reported. The page needs the extra: `pip install fairstream[report]`.
    """
    check_writable(page)
    require_report()
    if between == "groups":
        if metric is not None or t is not None:
            raise ConfigurationError("--metric and --t are for --between periods: levels are tested in the main metric")
        explanation, name = _between_groups(source, task)
        output.print(*explanation.sentences(), group_table(explanation), *explanation.notes)
        write_file(page, gap_page(explanation, name).encode())
        output.print(f"{page}: open it in any browser.")
        output.write(explanation.to_dict())
        return
    explained = explain_run(source, task=task, metric=metric, t=t)
    output.print(*summary(explained), _table(explained), *explained.notes)
    write_file(page, change_page(explained).encode())
    output.print(f"{page}: open it in any browser.")
    output.write({**explained.to_dict(), "summary": summary(explained)})


def _between_groups(source: Path, task: str | None) -> tuple[GapExplanation, str]:
    """Explain the gap in a run; also return a name for it."""
    if is_workspace(source):
        raise ConfigurationError(
            f"a workspace keeps no numbers of single people to explain a gap by; `fairstream report {source} --for "
            f"audit` reports what it has published"
        )
    record = read_one(source)
    config = record.config
    return explain_gap(record, task=task), f"{config['method']} ({config['model']}, seed {record.seed})"


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
