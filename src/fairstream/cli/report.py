"""`fairstream report`: runs, a reproduction of the paper, or a fairness report to hand over, as one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fairstream.cli.console import Output
from fairstream.cli.evaluate import by_name
from fairstream.cli.options import Advantaged, Group, Metric, Page, Task, Users, is_workspace
from fairstream.errors import ConfigurationError, DataError
from fairstream.experiments import Store, by_label, compare, pooled
from fairstream.files import check_writable, write_file
from fairstream.pages.audit import FairnessReport, fairness_report, report_on
from fairstream.pages.rendering import require_report
from fairstream.pages.runs import runs_page
from fairstream.paper.collect import findings_of
from fairstream.paper.report import write_figures, write_report

_AUDIT = "A fairness report to hand over (--for audit)"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…",
            help="Stores (`--store`), their run files, JSON files (`--json`), in any mix; or the store of one "
            "`fairstream reproduce`. With `--for audit`: a run, and another one to compare it with; a workspace; or, "
            "with `--truth`, files of recommendation lists, the system in question first.",
            show_default=False,
        ),
    ],
    page: Page = Path("report.html"),
    reader: Annotated[
        Literal["audit"] | None,
        typer.Option(
            "--for",
            help="audit: a fairness report of one system to hand over, for screens and A4; `--json` writes it with its "
            "schema.",
            show_default=False,
            case_sensitive=False,
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What people did after lists were made.", show_default=False, rich_help_panel=_AUDIT
        ),
    ] = None,
    users: Users = None,
    group: Group = None,
    advantaged: Advantaged = None,
    accepted_gap: Annotated[
        float | None,
        typer.Option(help="The gap declared acceptable before the test.", show_default=False, rich_help_panel=_AUDIT),
    ] = None,
    materiality: Annotated[
        float | None,
        typer.Option(help="The size below which a gap is immaterial.", show_default=False, rich_help_panel=_AUDIT),
    ] = None,
    declared_by: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Who declared that, and when.", show_default=False, rich_help_panel=_AUDIT),
    ] = None,
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

    With `--for audit` it writes a fairness report of one system: a summary in plain words, each group with intervals,
    what can be gained, what was tried, limits, and a line to sign. For the store of a `fairstream reproduce` it writes
    the page of the paper: verdicts, the paper's figures next to ours, every number. Pages with charts need the extra:
    `pip install fairstream[report]`.
    """
    check_writable(page)
    reading = {"users": users, "group": group, "advantaged": advantaged}
    declared = {"accepted_gap": accepted_gap, "materiality": materiality, "declared_by": declared_by}
    if reader == "audit":
        if metric is not None or figures is not None:
            raise ConfigurationError("--metric and --figures are not for --for audit: it reports the main metric")
        handed_over = _audit(runs, truth, reading, declared, task)
        handed_over.save(page)
        output.print(*handed_over.sentences(), f"{page}: open it in any browser, or print it.")
        output.write(handed_over.to_dict())
        return
    if any(value is not None for value in (truth, *reading.values(), *declared.values())):
        raise ConfigurationError("--truth, --users, --group and what was declared are for --for audit")
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


def _audit(
    sources: Sequence[Path],
    truth: Path | None,
    reading: Mapping[str, Any],
    declared: Mapping[str, Any],
    task: str | None,
) -> FairnessReport:
    """The fairness report of a run, of a workspace, or of lists."""
    first, *others = sources
    if truth is not None:
        lists = first if not others else by_name(list(sources))
        return fairness_report(lists, truth, task=task, **reading, **declared)
    if is_workspace(first):
        if others or task is not None or any(value is not None for value in reading.values()):
            raise ConfigurationError(
                "a workspace is reported alone and as it is: give no other option but what was declared"
            )
        from fairstream.cli.workspaces import opened  # noqa: PLC0415 (needs the extra `live`)
        from fairstream.service.released import released_subject  # noqa: PLC0415

        with opened(first) as workspace:
            return report_on(released_subject(workspace), declared)
    if len(others) > 1:
        raise ConfigurationError(f"give one run, and at most one to compare it with, got {len(sources)}")
    return fairness_report(first, task=task, against=others[0] if others else None, **reading, **declared)


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
