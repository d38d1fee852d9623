"""The routes of the dashboard: pages for keys of scope read, buttons for keys of scope admin."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from fairstream.errors import DataError, FairstreamError, WorkspaceError
from fairstream.pages.rendering import read_asset
from fairstream.service import items, registry, schema, updates
from fairstream.service.dashboard import web
from fairstream.service.dashboard.charts import sparkline
from fairstream.service.dashboard.overview import gap_chart, late, newcomers, quality_chart, status_of, stream_charts
from fairstream.service.dashboard.reading import ModelStory, Overview, audit_json
from fairstream.service.database import now, reachable, reading
from fairstream.service.event_store import EventStore
from fairstream.service.gaps import gap_in
from fairstream.service.keys import find_key
from fairstream.service.records import UnknownIdError
from fairstream.service.serving import Answer, ServedBy
from fairstream.service.workspace import Workspace
from fairstream.text import sentence

_Row = TypeVar("_Row")
_READ_SCOPES = ("read", "admin")
_PAGE_SIZE = 25
_HISTORY = 20


class Health(NamedTuple):
    """The state of the serving process."""

    started: datetime
    n_requests: int
    n_errors: int
    p50_seconds: float | None
    p99_seconds: float | None
    source: ServedBy | None = "model"  # what lists come from; None before anything is loaded
    problem: str | None = None  # the problem in a sentence


class Running(Protocol):
    """The part of the service that the pages use."""

    def health(self) -> Health: ...
    def recommend(self, user_id: str, k: int) -> Answer: ...
    async def request_update(self, by: str) -> object: ...


class Visitor(NamedTuple):
    """The signed-in key."""

    key: str
    scope: str
    token: str  # every form sends it back; another site cannot know it

    @property
    def is_admin(self) -> bool:
        return self.scope == "admin"


Page = Callable[[Request, Visitor], Response]
Action = Callable[[Request, Visitor, Mapping[str, str]], Awaitable[str]]
"""Performs the action of a button and returns the sentence to show."""


class Dashboard:
    """The dashboard of a workspace."""

    def __init__(self, workspace: Workspace, running: Running) -> None:
        self._workspace, self._running = workspace, running
        self._name = workspace.folder.resolve().name

    def routes(self) -> list[BaseRoute]:
        # Derived from the workspace's secret: every process and machine that serves it accepts the cookie.
        secret = hmac.digest(self._workspace.secret, b"dashboard sessions", "sha256").hex()
        sessions = [Middleware(web.Sessions, secret=secret)]

        def route(path: str, endpoint: Callable[..., Any], method: str = "GET") -> BaseRoute:
            return web.PageRoute(path, endpoint, methods=[method], include_in_schema=False, middleware=sessions)

        return [
            route("/", self._page(self._overview)),
            route("/models", self._page(self._models)),
            route("/models/{id}", self._page(self._model)),
            route("/models/{id}/audit.html", self._page(self._audit_html)),
            route("/models/{id}/audit.json", self._page(self._audit_json)),
            route("/updates", self._page(self._updates)),
            route("/lists", self._page(self._lists)),
            route("/updates", self._action(self._start_update, "/"), "POST"),
            route("/models/{id}/promote", self._action(self._promote, "/"), "POST"),
            route("/rollback", self._action(self._roll_back, "/"), "POST"),
            route("/items", self._action(self._set_available, "/lists"), "POST"),
            route("/login", lambda request: self._login(to=web.local_path(request.query_params.get("to")))),
            route("/login", self._sign_in, "POST"),
            route("/logout", self._sign_out, "POST"),
            web.PageRoute("/assets/{name}", web.asset_response, include_in_schema=False),
        ]

    def _overview(self, request: Request, visitor: Visitor) -> Response:
        config, health = self._workspace.config, self._running.health()
        overview = Overview(self._workspace, before=web.whole_number(request.query_params.get("before")))
        evaluated = overview.evaluated
        gap_charts = [gap_chart(overview, config)] if overview.groups else []
        return self._html(
            "overview.html",
            request,
            visitor,
            overview=overview,
            health=health,
            status=status_of(overview, health.source, health.problem, config.alerts.after),
            charts=[quality_chart(overview), *gap_charts] if evaluated else [],
            stream=stream_charts(overview),
            quality_line=sparkline([score["mean"] for _, score in evaluated]),
            gap_line=sparkline([gap.value if (gap := gap_in(score)) else None for _, score in evaluated]),
            newcomers=newcomers,
            late=late,
            refresh=overview.running is not None,
        )

    def _models(self, request: Request, visitor: Visitor) -> Response:
        rows, more = self._paged(registry.models, request)
        service = registry.in_service(self._workspace.engine)
        return self._html("models.html", request, visitor, models=rows, more=more, serving=service and service.model)

    def _updates(self, request: Request, visitor: Visitor) -> Response:
        rows, more = self._paged(updates.listed, request)
        return self._html("updates.html", request, visitor, updates=rows, more=more)

    def _paged(self, read: Callable[..., list[_Row]], request: Request) -> tuple[list[_Row], bool]:
        before = web.plain_text(request.query_params.get("before")) or None
        try:
            rows = read(self._workspace.engine, before=before, limit=_PAGE_SIZE + 1)
        except UnknownIdError:
            rows = read(self._workspace.engine, before=None, limit=_PAGE_SIZE + 1)
        return rows[:_PAGE_SIZE], len(rows) > _PAGE_SIZE

    def _lists(self, request: Request, visitor: Visitor) -> Response:
        user_id = web.plain_text(request.query_params.get("user"))
        after = web.plain_text(request.query_params.get("after"))
        withdrawn = items.listed(self._workspace.engine, available=False, after=after, limit=_PAGE_SIZE + 1)
        answer, history, problem = None, list[str](), None
        if user_id:
            try:
                answer = self._running.recommend(user_id, min(20, self._workspace.config.limits.max_k))
            except FairstreamError as error:
                problem = str(error)
            if visitor.is_admin:  # histories are personal data
                history = EventStore(self._workspace).items_of(user_id)[-_HISTORY:][::-1]
        return self._html(
            "lists.html",
            request,
            visitor,
            user_id=user_id,
            answer=answer,
            history=history,
            problem=problem,
            withdrawn=withdrawn[:_PAGE_SIZE],
            more=len(withdrawn) > _PAGE_SIZE,
        )

    def _model(self, request: Request, visitor: Visitor) -> Response:
        story = ModelStory(self._workspace, request.path_params["id"])
        can_serve = story.model.state != "failed" and self._workspace.models.exists(story.model.folder)
        return self._html("model.html", request, visitor, story=story, can_serve=can_serve)

    def _audit_html(self, request: Request, _: Visitor) -> Response:
        story = ModelStory(self._workspace, request.path_params["id"])
        shared = {"name": self._name, "group": self._workspace.config.group, "made": now()}
        page = web.render("audit.html", story=story, css=read_asset("style.css"), **shared)
        return web.download(f"audit-{story.model.id}.html", page, "text/html")

    def _audit_json(self, request: Request, _: Visitor) -> Response:
        story = ModelStory(self._workspace, request.path_params["id"])
        content = audit_json(story, self._workspace.config, made=now())
        return web.download(f"audit-{story.model.id}.json", content, "application/json")

    async def _start_update(self, _: Request, visitor: Visitor, __: Mapping[str, str]) -> str:
        await self._running.request_update(visitor.key)
        return "The update has been started."

    async def _promote(self, request: Request, visitor: Visitor, _: Mapping[str, str]) -> str:
        model_id = request.path_params["id"]
        await run_in_threadpool(registry.promote, self._workspace, model_id, by=visitor.key)
        return f"Model {model_id} has been promoted."

    async def _roll_back(self, _: Request, visitor: Visitor, __: Mapping[str, str]) -> str:
        model_id = await run_in_threadpool(registry.rollback, self._workspace, by=visitor.key)
        return f"Rolled back to model {model_id}."

    async def _set_available(self, _: Request, __: Visitor, form: Mapping[str, str]) -> str:
        item_id, is_available = web.plain_text(form.get("item")), form.get("available") == "yes"
        if not item_id:
            raise DataError("an item's id must have 1 to 256 printable characters")
        # Every serving process polls for such changes twice a second.
        await run_in_threadpool(items.set_available, self._workspace.engine, item_id, is_available)
        return f"Item {item_id} has been {'restored' if is_available else 'withdrawn'}."

    async def _sign_in(self, request: Request) -> Response:
        form = await web.read_form(request)
        if form is None or web.is_foreign(request):
            return self._login(400, "The form could not be read; enter the key again.")
        key, to = form.get("key", "").strip(), web.local_path(form.get("to"))
        try:
            holder = await run_in_threadpool(find_key, self._workspace.engine, key)
        except WorkspaceError:
            return self._unavailable()
        if holder is None:
            return self._login(401, "This key is unknown or revoked.", to)
        name, scope = holder
        if scope not in _READ_SCOPES:
            return self._login(403, f"The key “{name}” has the scope {scope}; read or admin is needed.", to)
        request.session.clear()
        request.session.update(key=name, token=secrets.token_urlsafe(16))
        return web.redirect(to)

    def _sign_out(self, request: Request) -> Response:
        if not web.is_foreign(request):
            request.session.clear()
        return web.redirect("/login")

    def _visitor(self, request: Request) -> Visitor | None:
        """Return the key of the session; revoking a key ends its sessions at once."""
        key, token = request.session.get("key"), request.session.get("token")
        if not key or not token:
            return None
        keys = schema.keys
        query = select(keys.c.scope).where(keys.c.name == key, keys.c.revoked.is_(None), keys.c.scope.in_(_READ_SCOPES))
        with reading(self._workspace.engine) as connection:
            scope = connection.scalar(query)
        return None if scope is None else Visitor(key, scope, token)

    def _page(self, answer: Page) -> Callable[[Request], Response]:
        """Return a page for signed-in visitors; others are sent to the login."""

        def endpoint(request: Request) -> Response:
            try:
                with reachable(self._workspace.engine):
                    visitor = self._visitor(request)
                    return web.to_login(request) if visitor is None else answer(request, visitor)
            except UnknownIdError:
                return self._message(404, "Not found", "There is no such model.")
            except WorkspaceError:
                return self._unavailable()

        return endpoint

    def _action(self, act: Action, back: str) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a button: for admin keys and our own forms; the page `back` shows the outcome."""

        async def endpoint(request: Request) -> Response:
            form = await web.read_form(request)
            try:
                visitor = await run_in_threadpool(self._visitor, request)
            except WorkspaceError:
                return self._unavailable()
            if visitor is None:
                return web.to_login(request)
            token = (form or {}).get("token", "").encode()
            if form is None or web.is_foreign(request) or not hmac.compare_digest(token, visitor.token.encode()):
                return self._message(403, "Form expired", "This form is no longer valid; load the page again.")
            if not visitor.is_admin:
                return self._message(403, "Not allowed", "This API key lacks the scope 'admin'.")
            try:
                request.session["flash"] = ["good", await act(request, visitor, form)]
            except FairstreamError as error:
                request.session["flash"] = ["bad", sentence(str(error))]
            return web.redirect(back)

        return endpoint

    def _html(self, template: str, request: Request, visitor: Visitor, **context: Any) -> Response:
        flash = request.session.pop("flash", None)
        config, tab = self._workspace.config, request.url.path.split("/")[1]
        shared = {"name": self._name, "config": config, "visitor": visitor, "flash": flash, "tab": tab}
        return web.html(web.render(template, **{"refresh": False, **shared, **context}))

    def _login(self, status: int = 200, problem: str | None = None, to: str = "/") -> Response:
        return web.html(web.render("login.html", name=self._name, problem=problem, to=to), status)

    def _message(self, status: int, title: str, words: str, headers: Mapping[str, str] | None = None) -> Response:
        return web.html(web.render("message.html", name=self._name, title=title, words=words), status, headers)

    def _unavailable(self) -> Response:
        words = "The database cannot be reached; try again in a moment."
        return self._message(503, "Service unavailable", words, {"Retry-After": "5"})
