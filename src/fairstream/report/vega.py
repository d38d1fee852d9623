"""The JavaScript that draws charts, from the package itself: a page needs no network for it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import vl_convert


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed in one piece; putting them together takes a second."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def own(name: str) -> str:
    """A style sheet or script of the report."""
    return files("fairstream.report").joinpath(name).read_text(encoding="utf-8")
