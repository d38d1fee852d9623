"""`fairstream report`: runs, or a reproduction of the paper, as one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fairstream.cli.console import check_json, make_console, print_lines, write_result
from fairstream.cli.options import Json, Metric, Output, Quiet, Task
from fairstream.errors import ConfigurationError, DataError
from fairstream.experiments import Store, by_label, check_writable, compare, pooled, write_file
from fairstream.pages.vega import need_charts
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
    output: Output = Path("report.html"),
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
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Write runs as one HTML page: compared with each other, period by period, group by group, with all settings.

    Of a store that `fairstream reproduce` wrote it is the page of the paper: verdicts, the paper's figures beside
    ours, every number. Needs the extra: `pip install fairstream[report]`.
    """
    check_json(json)
    check_writable(output)
    need_charts()
    console = make_console(quiet=quiet, json=json)
    if _is_reproduction(runs):
        findings = findings_of(runs[0])
        write_report(findings, output)
        written = [] if figures is None else write_figures(findings, figures, format=format)
        claims = [asdict(claim) for claim in findings.claims]
        document: dict[str, Any] = {
            "page": str(output),
            "figures": [str(path) for path in written],
            "claims": claims,
        }
        lines = [f"{output}: open it in any browser."]
        lines += [] if figures is None else [f"{figures}: {len(written)} pictures."]
    else:
        if figures is not None:
            raise ConfigurationError("--figures writes those of the paper; give the store of a `fairstream reproduce`")
        document = {"page": str(output), **write_runs(runs, output, metric=metric, task=task)}
        lines = [*document["verdicts"], *document["notes"], f"{output}: open it in any browser."]
    print_lines(console, *lines)
    write_result(document, json)


def write_runs(runs: Sequence[Path], output: Path, *, metric: str | None, task: str | None) -> dict[str, Any]:
    """Write the page of runs; gives what it says, for JSON."""
    from fairstream.pages.runs_page import runs_page  # noqa: PLC0415 (an extra)

    records, task, metric = by_label(runs, metric=metric, task=task)
    documents = {label: pooled(group) for label, group in records.items()}
    comparison: dict[str, Any] | None = None
    notes: list[str] = [] if len(records) > 1 else list(next(iter(documents.values())).get("notes", ()))
    if len(records) > 1:
        try:
            result = compare([record for group in records.values() for record in group], metric=metric, task=task)
            comparison = {**asdict(result), "verdicts": result.verdicts()}
            notes += result.notes
        except (ConfigurationError, DataError) as error:  # the runs stand side by side all the same
            notes.append(f"They were not compared: {error}.")
    page = runs_page(documents, task=task, metric=metric, comparison=comparison, notes=notes)
    write_file(output, page.encode())
    verdicts: list[str] = [] if comparison is None else comparison["verdicts"]
    shown = {"task": task, "metric": metric, "methods": list(documents), "notes": notes}
    return {**shown, "comparison": comparison, "verdicts": verdicts}


def _is_reproduction(runs: Sequence[Path]) -> bool:
    if len(runs) > 1 or not (runs[0] / "runs").is_dir():
        return False
    return Store.opened(runs[0]).note("plan") is not None
