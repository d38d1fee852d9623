"""The JavaScript that draws charts, from the package itself: a page needs no network for it."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.resources import files
from importlib.util import find_spec

from fairstream.errors import ConfigurationError

_WRITE = """
import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode())
"""


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed in one piece.

    Putting them together takes seconds in which no other thread would run, and memory that would
    not be given back: a process of its own does it, so that a service can go on answering.
    """
    command = [sys.executable, "-P", "-c", _WRITE]
    return subprocess.run(command, check=True, capture_output=True).stdout.decode()  # noqa: S603 - our own words


def need_charts() -> None:
    """Raise a `ConfigurationError` where what draws charts is not installed."""
    if any(find_spec(package) is None for package in ("altair", "vl_convert")):
        raise ConfigurationError(
            "a report needs altair and vl-convert-python, and they are not installed; install fairstream[report]"
        )


def own(name: str, package: str = "fairstream.pages") -> str:
    """A style sheet or script that ships with a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
