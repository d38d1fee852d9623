"""`fairstream status`, `models` and `periods`: what a workspace has in service, has made, and has closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fairstream.cli.console import check_json, make_console, new_table, print_lines, write_result
from fairstream.cli.options import Json, Quiet, WorkspaceFolder
from fairstream.cli.workspaces import opened
from fairstream.text import number

if TYPE_CHECKING:
    from datetime import datetime

    from fairstream.service.workspace import Workspace

Limit = Annotated[int, typer.Option(min=1, max=1000, help="Rows of a page.")]


def status(folder: WorkspaceFolder, json: Json = None, quiet: Quiet = False) -> None:
    """Say which model answers, how the last update ended, how many were rejected in a row, and what waits."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service.status import Status  # noqa: PLC0415 (an extra)

        found = Status.of(workspace)
    print_lines(make_console(quiet=quiet, json=json), *found.sentences())
    write_result(found.model_dump(mode="json"), json)


def models(
    folder: WorkspaceFolder,
    limit: Limit = 20,
    before: Annotated[
        str | None,
        typer.Option(help="Where the page before ended; the id of its last model.", show_default="the first page"),
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """List the models, the newest first: which is in service, and why each was promoted or rejected."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service import registry  # noqa: PLC0415 (an extra)

        current = registry.in_service(workspace.engine)
        page = registry.models(workspace.engine, before, limit + 1)
        noise = _noise(workspace)
    rows = [
        {
            **model.model_dump(mode="json", include={"id", "t", "parent", "state", "created", "training_seconds"}),
            "in_service": current is not None and current.model == model.id,
            "reason": model.decision.get("reason"),
        }
        for model in page[:limit]
    ]
    following = rows[-1]["id"] if len(page) > limit else None
    table = new_table("Models")
    for heading in ("", "model", "period", "state", "created (UTC)", "seconds"):
        table.add_column(heading, no_wrap=True)
    table.add_column("reason")
    for row, model in zip(rows, page, strict=False):
        mark, seconds = "●" if row["in_service"] else "", f"{model.training_seconds:.1f}"
        table.add_row(mark, model.id, str(model.t), model.state, _when(model.created), seconds, row["reason"] or "")
    console = make_console(quiet=quiet, json=json)
    console.print(table)
    print_lines(console, *_more(f"--before {following}" if following else None, n_rows=len(rows)), *noise)
    write_result({"models": rows, "next": following}, json)


def periods(
    folder: WorkspaceFolder,
    limit: Limit = 20,
    before: Annotated[
        int | None,
        typer.Option(
            help="Where the page before ended; the number of its earliest period.", show_default="the last periods"
        ),
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """List the closed periods: their events and users, and how the model in service did on each before learning it."""
    check_json(json)
    with opened(folder) as workspace:
        from fairstream.service.periods import closed_periods  # noqa: PLC0415 (an extra)

        page = closed_periods(workspace.engine, before=before, limit=limit + 1)
        noise = _noise(workspace)
    from fairstream.service.gaps import gap_in, score_in, why_no_gap  # noqa: PLC0415 (an extra)

    shown = page[-limit:]
    following = shown[0].t if len(page) > limit else None
    table = new_table("Periods")
    for heading in ("period", "closed (UTC)"):
        table.add_column(heading, no_wrap=True)
    for heading in ("events", "users", "late", "NDCG", "largest gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("whose")
    rows = []
    for period in shown:
        score = score_in(period.evaluation)
        gap = gap_in(score)
        rows.append(
            {
                **period.model_dump(mode="json", include={"t", "closed", "n_events", "n_users", "n_late"}),
                "ndcg": score.get("mean"),
                "largest_gap": None if gap is None else asdict(gap),
                "evaluation": period.evaluation,
            }
        )
        counts = (f"{n:,}" for n in (period.n_events, period.n_users, period.n_late))
        gap_cells = (gap.size, gap.side) if gap else ("–", "")
        if gap is None and period.evaluation and score.get("by_group"):
            gap_cells = "–", why_no_gap(period.evaluation)
        table.add_row(str(period.t), _when(period.closed), *counts, number(score.get("mean")), *gap_cells)
    console = make_console(quiet=quiet, json=json)
    console.print(table)
    print_lines(console, *_more(None if following is None else f"--before {following}", n_rows=len(rows)), *noise)
    write_result({"periods": rows, "next": following}, json)


def _noise(workspace: Workspace) -> Sequence[str]:
    """That numbers of groups carry noise, where they do."""
    from fairstream.service.gaps import noise_words  # noqa: PLC0415 (an extra)

    sentence = noise_words(workspace.config.privacy.epsilon)
    return [] if sentence is None else [sentence]


def _more(option: str | None, *, n_rows: int) -> Sequence[str]:
    """How to see the next page, or that there is nothing at all."""
    if not n_rows:
        return ["None yet."]
    return [] if option is None else [f"There are more: {option} shows the next page."]


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
