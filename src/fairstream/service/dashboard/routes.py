"""The dashboard's addresses. Nothing here changes the workspace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import select
from starlette.responses import RedirectResponse, Response

from fairstream.errors import WorkspaceError
from fairstream.service.dashboard.assets import FOR_EVER, asset
from fairstream.service.dashboard.audit_file import audit_html, audit_json
from fairstream.service.dashboard.login_page import login_page, message_page
from fairstream.service.dashboard.model_page import model_page
from fairstream.service.dashboard.one_model import ModelStory, read_model
from fairstream.service.dashboard.overview import read_overview
from fairstream.service.dashboard.overview_page import overview_page
from fairstream.service.dashboard.sessions import LASTS, Sessions
from fairstream.service.database import now, reachable
from fairstream.service.keys import scope_of
from fairstream.service.schema import keys
from fairstream.service.workspace import Workspace

COOKIE = "fairstream_session"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MAY_LOOK = ("read", "admin")
_LONGEST_FORM = 4096
_LONGEST_PERIOD = 9
_MODEL_PATH = re.compile(r"/models/[^/?#\\\s]{1,200}")

Health = Callable[[], Mapping[str, Any]]


def router(workspace: Workspace, health: Health | None = None) -> APIRouter:
    """The pages of a workspace; `health` tells how the service does, where there is one.

    What it may tell is in `health.py`; anything else is shown under its own name.
    """
    pages, sessions = APIRouter(include_in_schema=False), Sessions()

    def page_for(request: Request, answer: Callable[[], Response]) -> Response:
        """The page for whoever is signed in; all others are asked for a key."""

        def looked_up() -> Response:
            session = sessions.of(request.cookies.get(COOKIE))
            is_signed_in = session is not None and _is_valid(workspace, session.key)
            return answer() if is_signed_in else _to_login(request)

        return _while_reachable(workspace, looked_up)

    def about_model(request: Request, answer: Callable[[ModelStory], Response]) -> Response:
        def found() -> Response:
            story = read_model(workspace, request.path_params["id_"])
            return _no_model() if story is None else answer(story)

        return page_for(request, found)

    @pages.get("/")
    def overview(request: Request) -> Response:
        def answer() -> Response:
            found = read_overview(workspace, before=_period(request.query_params.get("before")))
            return _page(overview_page(found, health() if health else None))

        return page_for(request, answer)

    @pages.get("/models/{id_}")
    def model(request: Request) -> Response:
        return about_model(request, lambda story: _page(model_page(story)))

    @pages.get("/models/{id_}/audit.html")
    def as_html(request: Request) -> Response:
        return about_model(request, lambda story: _download(story, audit_html(story, made=now()), "html"))

    @pages.get("/models/{id_}/audit.json")
    def as_json(request: Request) -> Response:
        return about_model(request, lambda story: _download(story, audit_json(story, made=now()), "json"))

    @pages.get("/login")
    def ask(request: Request) -> Response:
        return _page(login_page(to=_local(request.query_params.get("to"))))

    @pages.post("/login")
    async def sign_in(request: Request) -> Response:
        form = await _form(request)
        if form is None or _is_foreign(request):
            return _page(login_page("This form could not be read; type the key once more."), status=400)
        key, to = form.get("key", "").strip(), _local(form.get("to"))
        return await run_in_threadpool(_while_reachable, workspace, lambda: begin(request, key, to))

    def begin(request: Request, key: str, to: str) -> Response:
        found = scope_of(workspace.engine, key) if key.isascii() and key.isprintable() else None
        if found is None:
            return _page(login_page("This key is not known, or was revoked.", to=to), status=401)
        name, scope = found
        if scope not in _MAY_LOOK:
            sentence = f"The key “{name}” has the scope {scope}; the dashboard needs read or admin."
            return _page(login_page(sentence, to=to), status=403)
        answer = _redirect(to)
        answer.set_cookie(
            COOKIE,
            sessions.begin(name),
            max_age=LASTS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @pages.post("/logout")
    def sign_out(request: Request) -> Response:
        if not _is_foreign(request):
            sessions.end(request.cookies.get(COOKIE))
        answer = _redirect("/login")
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    @pages.get("/assets/{file}")
    def load(request: Request) -> Response:
        found = asset(request.path_params["file"])
        if found is None:
            return _page(message_page("Not found", "There is no such file.", is_signed_in=False), status=404)
        headers = {**HEADERS, "Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(found.content, media_type=found.media_type, headers=headers)
        return Response(found.zipped, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})

    return pages


def _while_reachable(workspace: Workspace, answer: Callable[[], Response]) -> Response:
    """A database that is away for a moment is a sentence, too."""
    try:
        with reachable(workspace.engine):
            return answer()
    except WorkspaceError:
        page = message_page("Not now", "The database cannot be reached; try again in a moment.", is_signed_in=False)
        return _page(page, status=503, more={"Retry-After": "5"})


def _is_valid(workspace: Workspace, key: str) -> bool:
    """Revoking a key ends its sessions at once."""
    wanted = select(keys.c.name).where(keys.c.name == key, keys.c.revoked.is_(None), keys.c.scope.in_(_MAY_LOOK))
    with workspace.engine.connect() as connection:
        return connection.execute(wanted).first() is not None


def _page(content: str, *, status: int = 200, more: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, {**HEADERS, **(more or {})}, "text/html; charset=utf-8")


def _no_model() -> Response:
    return _page(message_page("Not found", "There is no such model; the overview lists those there are."), status=404)


def _download(story: ModelStory, content: str, suffix: str) -> Response:
    kind = "text/html" if suffix == "html" else "application/json"
    name = quote(f"audit-{story.model.id}.{suffix}", safe="")
    headers = {**HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)


def _redirect(to: str) -> Response:
    return RedirectResponse(to, status_code=303, headers=HEADERS)


def _to_login(request: Request) -> Response:
    to = _local(request.scope.get("path"))
    return _redirect("/login" if to == "/" else f"/login?to={quote(to, safe='')}")


def _local(to: str | None) -> str:
    """Only the dashboard's own pages are gone to after signing in."""
    if not to or not to.isprintable() or not _MODEL_PATH.fullmatch(to):
        return "/"
    return quote(to)


def _period(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > _LONGEST_PERIOD:
        return None
    return int(text)


def _is_foreign(request: Request) -> bool:
    """Whether another site sent the form, as far as the browser tells."""
    return request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


async def _form(request: Request) -> dict[str, str] | None:
    """The few fields of a small form."""
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
