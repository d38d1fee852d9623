"""What a page loads, all from the service itself: named by its content, so that it can be kept for ever."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fairstream.pages.vega import own, vega

FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A file as the browser gets it."""

    name: str
    media_type: str
    content: bytes
    zipped: bytes

    @property
    def address(self) -> str:
        return f"/assets/{self.name}"


@cache
def look() -> Asset:
    """The report's style sheet, and what the dashboard adds to it."""
    return _asset("look", "css", "text/css; charset=utf-8", style())


@cache
def drawing() -> tuple[Asset, Asset]:
    """The scripts that draw charts, in the order in which they must run."""
    kind = "text/javascript; charset=utf-8"
    return _asset("vega", "js", kind, vega()), _asset("charts", "js", kind, own("charts.js"))


@cache
def icon() -> Asset:
    """What a browser's tab shows."""
    return _asset("icon", "svg", "image/svg+xml", _mine("icon.svg"))


def style() -> str:
    """The style sheet as text, for pages that carry it themselves."""
    return own("page.css") + _mine("dashboard.css")


def asset(name: str) -> Asset | None:
    """The file of this name."""
    # Vega takes a second to put together: it is not made just to find that another file was meant.
    if name == look().name:
        return look()
    if name == icon().name:
        return icon()
    if not name.endswith(".js"):
        return None
    return next((script for script in drawing() if script.name == name), None)


def _asset(stem: str, suffix: str, media_type: str, text: str) -> Asset:
    content = text.encode()
    name = f"{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
    return Asset(name, media_type, content, gzip.compress(content, mtime=0))


def _mine(name: str) -> str:
    return files("fairstream.service.dashboard").joinpath(name).read_text(encoding="utf-8")
