"""Jinja2 for all pages: autoescape, shared macros and filters, pages in one file each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from inspect import getmembers, isfunction
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from fairstream import text
from fairstream.errors import ConfigurationError

_WRITE_VEGA = """
import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode())
"""


def make_environment(package: str, *filters: Callable[..., Any]) -> Environment:
    """Return the Jinja2 environment of a package: its folder `templates`, then that of `fairstream.pages`.

    Templates use the functions of `fairstream.text`, and these `filters`, by name.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, "fairstream.pages"))]),
        autoescape=select_autoescape(disabled_extensions=("txt",), default_for_string=True, default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    named = {filter_.__name__: filter_ for filter_ in (script_data, *filters)}
    environment.filters.update(getmembers(text, isfunction), **named)
    environment.globals.update(MISSING=text.MISSING)
    return environment


@cache
def _environment(package: str) -> Environment:
    environment = make_environment(package)
    environment.globals.update(read_asset=read_asset, vega=vega)
    return environment


def render(template: str, package: str = "fairstream.pages", **context: Any) -> str:
    """Return a page; equal contexts give equal pages, byte for byte."""
    return _environment(package).get_template(template).render(context)


def macros(template: str) -> Any:
    """Return a template of `fairstream.pages` as a module of its macros."""
    return _environment("fairstream.pages").get_template(template).module


def script_data(value: Any) -> Markup:
    """Return JSON for a script element; `<` is escaped, since it could end the element."""
    document = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(document.replace("<", "\\u003c"))  # noqa: S704 (escaped)


@cache
def read_asset(name: str, package: str = "fairstream.pages") -> Markup:
    """Return a style sheet or a script that ships with a package."""
    return Markup(files(package).joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704 (our own)


@cache
def vega() -> Markup:
    """Return Vega, Vega-Lite and Vega-Embed as one script, so that a page needs no network."""
    # In a separate process: bundling takes seconds, blocks all threads and never frees its memory.
    command = [sys.executable, "-P", "-c", _WRITE_VEGA]
    bundle = subprocess.run(command, check=True, capture_output=True).stdout.decode()  # noqa: S603
    return Markup(bundle)  # noqa: S704 (the package's own)


def require_report() -> None:
    """Raise a `ConfigurationError` unless the extra `report` is installed."""
    if any(find_spec(package) is None for package in ("altair", "vl_convert")):
        raise ConfigurationError(
            "a report needs altair and vl-convert-python, and they are not installed; install fairstream[report]"
        )
