"""`fairstream report`: a reproduction of the paper as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairstream.cli.console import make_console, print_lines
from fairstream.cli.options import Output, Quiet
from fairstream.experiments import check_writable
from fairstream.paper.collect import findings_of
from fairstream.paper.report import PictureFormat, write_figures, write_report


def report(
    store: Annotated[Path, typer.Argument(help="Results folder of `fairstream reproduce`.")],
    output: Output = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write each figure as a picture into this folder.", show_default=False)
    ] = None,
    format: Annotated[PictureFormat, typer.Option(help="Format of the pictures.")] = "png",  # noqa: A002
    quiet: Quiet = False,
) -> None:
    """Render a reproduction as a single HTML page: verdicts, the paper's figures beside ours, every number.

    Runs that are missing in the store are shown as not run. Needs the extra: `pip install fairstream[report]`.
    """
    check_writable(output)
    findings = findings_of(store)
    write_report(findings, output)
    console = make_console(quiet=quiet)
    print_lines(console, f"{output}: open it in any browser.")
    if figures is not None:
        written = write_figures(findings, figures, format=format)
        print_lines(console, f"{figures}: {len(written)} pictures.")
