"""Jinja2 as the pages use it, and the files that they load: named by their content, so that browsers keep them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fairstream.service import gaps
from fairstream.service.dashboard import reading, words

_FILTERS = (
    words.score,
    words.change,
    words.percent,
    words.count,
    words.interval,
    words.duration,
    words.when,
    words.iso,
    words.sentence,
    words.gap_words,
    words.gain_words,
    words.times,
    words.reason_of,
    words.checks_of,
    words.is_manual,
    words.check_name,
    words.options,
    words.entry_words,
    words.entry_body,
    reading.scores_of,
    reading.gap_of,
    gaps.level_of,
    gaps.noise_words,
    gaps.why_no_gap,
)


@dataclass(frozen=True)
class Asset:
    """A file as the browser gets it."""

    name: str
    media_type: str
    content: bytes

    @property
    def address(self) -> str:
        return f"/assets/{self.name}"


def render(template: str, **context: Any) -> str:
    """A page as text; a name that the template does not know is an error."""
    return _environment().get_template(template).render(context)


@cache
def assets() -> dict[str, Asset]:
    """The style sheet and the icon, by their names."""
    found = (_asset("dashboard.css", "text/css; charset=utf-8"), _asset("icon.svg", "image/svg+xml"))
    return {asset.name: asset for asset in found}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fairstream.service.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({function.__name__: function for function in _FILTERS})
    style, icon = assets().values()
    environment.globals.update(style=style, icon=icon)
    return environment


def _asset(file: str, media_type: str) -> Asset:
    content = files("fairstream.service.dashboard").joinpath(file).read_bytes()
    stem, _, suffix = file.partition(".")
    return Asset(f"{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{suffix}", media_type, content)
