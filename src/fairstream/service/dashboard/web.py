"""HTTP as the pages need it: guarded answers, signed sessions, small forms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qs, quote

from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fairstream.service.dashboard.templating import assets
from fairstream.service.fields import MAX_LENGTH

COOKIE = "fairstream_session"
LASTS = 12 * 60 * 60
"""Seconds from signing in to the end of a session."""
_NO_FILE = '<!doctype html><html lang="en"><title>Not found</title><p>There is no such file.</p></html>'
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
_FOR_EVER = "public, max-age=31536000, immutable"
_LONGEST_FORM = 4096
_OWN_PATH = re.compile(r"/(models(/[\w.-]{1,64})?|updates|lists)", re.ASCII)


class Sessions:
    """Starlette's signed cookie; over HTTPS it is never sent over anything else."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._by_scheme = {
            is_https: SessionMiddleware(
                app, secret, session_cookie=COOKIE, max_age=LASTS, same_site="strict", https_only=is_https
            )
            for is_https in (False, True)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._by_scheme[scope.get("scheme") == "https"](scope, receive, send)


class PageRoute(Route):
    """A route that requests are logged and counted by."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return match, {**child, "route": self}


def asset_response(request: Request) -> Response:
    """The style sheet or the icon, kept by browsers for ever."""
    asset = assets().get(request.path_params["name"])
    if asset is None:
        return HTMLResponse(_NO_FILE, 404, HEADERS)
    return Response(asset.content, media_type=asset.media_type, headers={**HEADERS, "Cache-Control": _FOR_EVER})


def html(page: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A page."""
    return Response(page, status, {**HEADERS, **(headers or {})}, "text/html; charset=utf-8")


def redirect(to: str) -> Response:
    """To a page, to be fetched by GET."""
    return RedirectResponse(to, status_code=303, headers=HEADERS)


def to_login(request: Request) -> Response:
    """To where a key is asked for; afterwards back to this page."""
    to = local_path(request.url.path) if request.method == "GET" else "/"
    return redirect("/login" if to == "/" else f"/login?to={quote(to, safe='')}")


def download(name: str, content: str, media_type: str) -> Response:
    """A file to keep."""
    headers = {**HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(content, media_type=f"{media_type}; charset=utf-8", headers=headers)


def local_path(to: str | None) -> str:
    """Only the dashboard's own pages are gone to after signing in."""
    return to if to and _OWN_PATH.fullmatch(to) else "/"


def whole_number(text: str | None) -> int | None:
    """A small whole number of a query; None for anything else."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def plain_text(text: str | None) -> str:
    """An id of a query or a form as a database takes it; empty for anything else."""
    stripped = (text or "").strip()
    return stripped if stripped.isprintable() and len(stripped) <= MAX_LENGTH else ""


def is_foreign(request: Request) -> bool:
    """Whether another site sent the form, as far as the browser tells."""
    return request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


async def read_form(request: Request) -> dict[str, str] | None:
    """The few fields of a small form; None where it is none."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_FORM:
            return None
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=8, errors="strict")
    except ValueError:
        return None
    return {name: values[0] for name, values in fields.items()}
