"""Writing a report and its figures; the only place that knows that they need an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from fairstream.errors import ConfigurationError
from fairstream.files import replace_file
from fairstream.paper.findings import Findings

PictureFormat = Literal["png", "svg"]


def write_report(findings: Findings, path: Path) -> None:
    """One HTML file with all tables and figures, which opens without a network.

    It is written whole or not at all.
    """
    _need_the_extra()
    from fairstream.paper.report.page import page_of  # noqa: PLC0415, needs the extra

    page = page_of(findings).encode()
    with _one_sentence(path):
        replace_file(path, page)


def write_figures(findings: Findings, folder: Path, *, format: PictureFormat = "png") -> list[Path]:  # noqa: A002
    """Each figure that has anything to show as a picture of its own, named by the paper's label; their paths."""
    _need_the_extra()
    from fairstream.paper.report.export import export_figures  # noqa: PLC0415, needs the extra

    with _one_sentence(folder):
        return export_figures(findings, folder, format=format)


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"the report could not be written to {path}: {reason}; choose another place") from None


def _need_the_extra() -> None:
    if any(find_spec(package) is None for package in ("altair", "vl_convert")):
        raise ConfigurationError(
            "a report needs altair and vl-convert-python, and they are not installed; install fairstream[report]"
        )
