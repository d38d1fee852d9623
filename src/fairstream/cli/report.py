"""`fairstream report`: runs, or a reproduction of the paper, as one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fairstream.cli.console import Output
from fairstream.cli.options import Metric, Page, Task
from fairstream.errors import ConfigurationError, DataError
from fairstream.experiments import Store, by_label, compare, pooled
from fairstream.files import check_writable, write_file
from fairstream.pages.rendering import require_report
from fairstream.pages.runs import runs_page
from fairstream.paper.collect import findings_of
from fairstream.paper.report import write_figures, write_report


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…",
            help="Stores (`--store`), their run files, JSON files (`--json`), in any mix; or the store of one "
            "`fairstream reproduce`.",
            show_default=False,
        ),
    ],
    page: Page = Path("report.html"),
    metric: Metric = None,
    task: Task = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Of a reproduction: also write each figure as a picture here.", show_default=False
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        Literal["png", "svg"], typer.Option(help="Format of these pictures.", case_sensitive=False)
    ] = "png",
    *,
    output: Output,
) -> None:
    """Write runs as one HTML page: compared with each other, period by period, group by group, with all settings.

    For the store of a `fairstream reproduce` it writes the page of the paper: verdicts, the paper's figures next to
    ours, every number. Needs the extra: `pip install fairstream[report]`.
    """
    check_writable(page)
    require_report()
    if len(runs) == 1 and Store(runs[0]).note("plan") is not None:  # of a reproduction
        findings = findings_of(runs[0])
        write_report(findings, page)
        written = [] if figures is None else write_figures(findings, figures, format=format)
        claims = [asdict(claim) for claim in findings.claims]
        document: dict[str, Any] = {"page": str(page), "figures": [str(path) for path in written], "claims": claims}
        pictures = [] if figures is None else [f"{figures}: {len(written)} pictures."]
        lines = [f"{page}: open it in any browser.", *pictures]
    else:
        if figures is not None:
            raise ConfigurationError("--figures writes those of the paper; give the store of a `fairstream reproduce`")
        document = {"page": str(page), **write_runs(runs, page, metric=metric, task=task)}
        lines = [*document["verdicts"], *document["notes"], f"{page}: open it in any browser."]
    output.print(*lines)
    output.write(document)


def write_runs(runs: Sequence[Path], output: Path, *, metric: str | None, task: str | None) -> dict[str, Any]:
    """Write the page of runs and return its content for JSON."""
    records, task, metric = by_label(runs, metric=metric, task=task)
    documents = {label: pooled(group) for label, group in records.items()}
    comparison = None
    notes: list[str] = [] if len(records) > 1 else list(next(iter(documents.values())).get("notes", ()))
    if len(records) > 1:
        try:
            comparison = compare([record for group in records.values() for record in group], metric=metric, task=task)
            notes += comparison.notes
        except (ConfigurationError, DataError) as error:  # the page then shows the runs without a comparison
            notes.append(f"They were not compared: {error}.")
    page = runs_page(documents, task=task, metric=metric, comparison=comparison, notes=notes)
    write_file(output, page.encode())
    verdicts = [] if comparison is None else comparison.verdicts()
    shown = {"task": task, "metric": metric, "methods": list(documents), "notes": notes}
    document = None if comparison is None else {**asdict(comparison), "verdicts": verdicts}
    return {**shown, "comparison": document, "verdicts": verdicts}
