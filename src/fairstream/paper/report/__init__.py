"""The results of a reproduction as one page and as pictures; only this file knows that they need an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fairstream import ConfigurationError
from fairstream.experiments import write_file
from fairstream.pages.vega import need_charts
from fairstream.paper.findings import Findings

__all__ = ["PictureFormat", "write_figures", "write_report"]

PictureFormat = Literal["png", "svg"]


def write_report(findings: Findings, path: Path) -> None:
    """One HTML file with all tables and figures, which opens without a network.

    It is written whole or not at all.
    """
    need_charts()
    from fairstream.paper.report.page import page_of  # noqa: PLC0415, needs the extra

    write_file(path, page_of(findings).encode())


def write_figures(findings: Findings, folder: Path, *, format: PictureFormat = "png") -> list[Path]:  # noqa: A002
    """Each figure that has anything to show as a picture of its own, named by the paper's label; their paths."""
    need_charts()
    from fairstream.paper.report.figures import export_figures  # noqa: PLC0415, needs the extra

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(
            f"the figures could not be written to {folder}: {reason}; choose another folder"
        ) from None
    return export_figures(findings, folder, format=format)
