"""HTTP for the pages: templates and assets, security headers, signed sessions, small forms."""

from __future__ import annotations

import hashlib
import json
import mimetypes
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from functools import cache, partial
from typing import Any
from urllib.parse import parse_qs, quote

from jinja2 import Environment
from markupsafe import Markup, escape
from sqlalchemy import ColumnElement, Engine, exists
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fairstream.pages.rendering import make_environment, read_asset
from fairstream.service import gaps, schema
from fairstream.service.database import now, writing
from fairstream.service.incoming import MAX_LENGTH
from fairstream.service.records import from_microseconds
from fairstream.text import between, number, signed

COOKIE = "fairstream_session"
LASTS = 12 * 60 * 60  # seconds from signing in to the end of a session
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
_MAX_FORM = 4096
_OWN_PATH = re.compile(r"/((models|experiments)(/[\w.-]{1,64})?|updates|lists|items)", re.ASCII)


# ── templates and assets ─────────────────────────────────────────────────────────────────


def when(time: datetime | int) -> Markup:
    """Format a time, or microseconds since 1970, for people and for programs.

    >>> print(when(1_763_000_000_000_000))
    <time datetime="2025-11-13T02:13:20Z">13 Nov 2025, 02:13 UTC</time>
    """
    at: datetime = from_microseconds(time).astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(f"{at:%Y-%m-%dT%H:%M:%SZ}", f"{at:%-d %b %Y, %H:%M} UTC")


def pretty(document: Any) -> str:
    """Return JSON for people."""
    return json.dumps(document, ensure_ascii=False, indent=1)


def code(text: str) -> Markup:
    """Return text in which backquotes mark code.

    >>> print(code("`k` is < 5"))
    <code>k</code> is &lt; 5
    """
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 (escaped)


_PACKAGE = "fairstream.service.dashboard"
_FILTERS = (
    *(code, when, pretty),
    *(gaps.score_in, gaps.gap_in, gaps.gap_of, gaps.level_of, gaps.noise_words, gaps.share_of, gaps.why_no_gap),
    gaps.with_margin,
)


def render(template: str, **context: Any) -> str:
    """Return a page."""
    return environment().get_template(template).render(context)


@cache
def assets() -> dict[str, str]:
    """Return the style sheet and the icon by name; a name holds a hash, so browsers keep the file."""
    contents = {"style.css": read_asset("style.css"), "icon.svg": read_asset("icon.svg", _PACKAGE)}
    return {
        f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.{name}": content for name, content in contents.items()
    }


@cache
def environment() -> Environment:
    """Return the environment of the pages, for others that draw with the same macros."""
    made = make_environment(_PACKAGE, *_FILTERS)
    # Three decimals, as the noise of the groups' numbers allows.
    made.filters.update(
        score=partial(number, digits=3), change=partial(signed, digits=3), interval=partial(between, digits=3)
    )
    made.filters["from_json"] = json.loads
    style, icon = (f"/assets/{name}" for name in assets())
    made.globals.update(style=style, icon=icon)
    return made


def asset_response(request: Request) -> Response:
    """Send the style sheet or the icon; browsers keep them."""
    name = request.path_params["name"]
    if name not in assets():
        return html('<!doctype html><html lang="en"><title>Not found</title><p>There is no such file.</p></html>', 404)
    headers = {**HEADERS, "Cache-Control": _IMMUTABLE}
    return Response(assets()[name], media_type=mimetypes.guess_type(name)[0], headers=headers)


# ── sessions ─────────────────────────────────────────────────────────────────────────────


class Sessions:
    """Starlette's signed cookie; one set over HTTPS is sent over HTTPS only, one of a shop to that shop only."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app, self._secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, is_https = root_of(scope) or "/", scope.get("scheme") == "https"
        sessions = SessionMiddleware(
            self._app, self._secret, COOKIE, LASTS, path, same_site="strict", https_only=is_https
        )
        await sessions(scope, receive, send)


def end_session(engine: Engine, token: str) -> None:
    """Sign out: no copy of the cookie opens a page any more."""
    ended = schema.ended_sessions
    with writing(engine) as connection:
        connection.execute(ended.delete().where((ended.c.until < now()) | (ended.c.digest == _digest(token))))
        connection.execute(ended.insert().values(digest=_digest(token), until=now() + LASTS * 1_000_000))


def has_ended(token: str) -> ColumnElement[bool]:
    """Return the condition that the session with this token was signed out of."""
    return exists().where(schema.ended_sessions.c.digest == _digest(token))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


# ── requests ─────────────────────────────────────────────────────────────────────────────


class PageRoute(Route):
    """A route that logs and metrics can name."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return match, {**child, "route": self}


async def read_form(request: Request) -> dict[str, str] | None:
    """Read the fields of a small form; None if it is malformed, or another site sent it."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return None
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM:
            return None
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=8, errors="strict")
    except ValueError:
        return None
    return {name: values[0] for name, values in fields.items()}


def root_of(scope: Mapping[str, Any]) -> str:
    """Return the path before those of the dashboard: of a proxy, or of one of several shops."""
    return str(scope.get("root_path", "")).rstrip("/")


def path_of(request: Request) -> str:
    """Return the path of a page below the root."""
    return request.url.path.removeprefix(root_of(request.scope))


def local_path(to: str | None) -> str:
    """Return the path if it is a page of the dashboard, else the overview: no redirect leaves the site."""
    return to if to and _OWN_PATH.fullmatch(to) else "/"


def whole_number(text: str | None) -> int | None:
    """Parse a small whole number; None for anything else."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def day(text: str | None) -> date | None:
    """Parse a date as a browser's date field sends it; None for anything else."""
    try:
        return date.fromisoformat(text or "")
    except ValueError:
        return None


def plain_text(text: str | None) -> str:
    """Return an id that a database accepts; empty for anything else."""
    stripped = (text or "").strip()
    return stripped if stripped.isprintable() and len(stripped) <= MAX_LENGTH else ""


# ── answers ──────────────────────────────────────────────────────────────────────────────


def html(page: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Send a page."""
    return HTMLResponse(page, status, {**HEADERS, **(headers or {})})


def redirect(request: Request, to: str) -> Response:
    """Redirect to a page, which the browser fetches by GET."""
    return RedirectResponse(root_of(request.scope) + to, status_code=303, headers=HEADERS)


def to_login(request: Request) -> Response:
    """Redirect to the login, and from there back to this page."""
    to = local_path(path_of(request)) if request.method == "GET" else "/"
    return redirect(request, "/login" if to == "/" else f"/login?to={quote(to, safe='')}")
