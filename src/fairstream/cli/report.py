"""`fairstream report`: what a reproduction found, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from fairstream.cli.console import make_console
from fairstream.errors import ConfigurationError
from fairstream.experiments import check_writable
from fairstream.paper.collect import findings_of
from fairstream.paper.report import PictureFormat, write_figures, write_report

_FORMATS = ("png", "svg")


def report(
    store: Annotated[Path, typer.Argument(help="Folder that `fairstream reproduce` wrote its results into.")],
    to: Annotated[Path, typer.Option(help="The page: one HTML file that needs no network.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write each figure as a picture into this folder.", show_default=False)
    ] = None,
    format: Annotated[str, typer.Option(help="Of the pictures: png or svg.")] = "png",  # noqa: A002
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Make one page of a store: verdicts, the paper's figures beside ours, and every number.

    What the store does not hold yet is shown as not run. Needs the extra: `pip install fairstream[report]`.
    """
    if format not in _FORMATS:
        raise ConfigurationError(f"format must be png or svg, got {format!r}")
    check_writable(to)
    findings = findings_of(store)
    write_report(findings, to)
    console = make_console(quiet=quiet)
    console.print(f"{to}: open it in any browser.", highlight=False, soft_wrap=True)
    if figures is not None:
        written = write_figures(findings, figures, format=cast("PictureFormat", format))
        console.print(f"{figures}: {len(written)} pictures.", highlight=False, soft_wrap=True)
