"""The dashboard's addresses: pages for keys that may read, buttons for keys of scope admin."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from markupsafe import Markup
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from fairstream.errors import DataError, FairstreamError, WorkspaceError
from fairstream.service import items, registry, schema, updates
from fairstream.service.dashboard.audit_file import audit_json
from fairstream.service.dashboard.charts import sparkline
from fairstream.service.dashboard.overview import gap_chart, late, newcomers, quality_chart, stream_charts, target_of
from fairstream.service.dashboard.reading import ModelStory, gap_of, read_model, read_overview
from fairstream.service.dashboard.status import status_of
from fairstream.service.dashboard.templating import assets, render
from fairstream.service.dashboard.web import (
    PageRoute,
    Sessions,
    asset_response,
    download,
    html,
    is_foreign,
    local_path,
    plain_text,
    read_form,
    redirect,
    to_login,
    whole_number,
)
from fairstream.service.dashboard.words import sentence
from fairstream.service.database import DatabaseUnavailableError, now, reachable
from fairstream.service.event_store import EventStore
from fairstream.service.keys import scope_of
from fairstream.service.serving import Answer, ServedBy
from fairstream.service.workspace import Workspace

_Row = TypeVar("_Row")
_MAY_READ = ("read", "admin")
_ROWS_AT_ONCE = 25
_HISTORY = 20


@dataclass(frozen=True)
class Health:
    """How the serving process does."""

    started: datetime
    n_requests: int
    n_errors: int
    p50_seconds: float | None
    p99_seconds: float | None
    source: ServedBy | None = "model"
    """What answers; None: nothing is loaded yet."""
    problem: str | None = None
    """What is wrong, in a sentence."""


class Running(Protocol):
    """What the pages need of the service that they belong to."""

    def health(self) -> Health: ...

    def recommend(self, user_id: str, k: int) -> Answer:
        """A user's list, as everybody gets it."""

    async def start_update(self, by: str) -> None:
        """Queue an update and start it; raises a `WorkspaceError` where one runs already."""


@dataclass(frozen=True)
class Visitor:
    """Who looks at a page: the key that was signed in with."""

    key: str
    scope: str
    token: str
    """What a form must send back: another site cannot know it."""

    @property
    def is_admin(self) -> bool:
        return self.scope == "admin"


Page = Callable[[Request, Visitor], Response]
Action = Callable[[Request, Visitor, Mapping[str, str]], Awaitable[str]]
"""Does what a button says; gives the sentence to show."""


def routes(workspace: Workspace, running: Running) -> list[BaseRoute]:
    """The routes of the dashboard of a workspace."""
    return _Dashboard(workspace, running).routes()


class _Dashboard:
    def __init__(self, workspace: Workspace, running: Running) -> None:
        self._workspace, self._running = workspace, running
        self._name = workspace.folder.resolve().name

    def routes(self) -> list[BaseRoute]:
        # Derived from the workspace's secret: every process and machine that serves it accepts the cookie.
        secret = hmac.digest(self._workspace.secret, b"dashboard sessions", "sha256").hex()
        sessions = [Middleware(Sessions, secret=secret)]

        def route(path: str, endpoint: Callable[..., Any], method: str = "GET") -> BaseRoute:
            return PageRoute(path, endpoint, methods=[method], include_in_schema=False, middleware=sessions)

        return [
            route("/", self._page(self._overview)),
            route("/models", self._page(self._models)),
            route("/models/{id}", self._page(self._of_model(self._model))),
            route("/models/{id}/audit.html", self._page(self._of_model(self._audit_html))),
            route("/models/{id}/audit.json", self._page(self._of_model(self._audit_json))),
            route("/updates", self._page(self._updates)),
            route("/lists", self._page(self._lists)),
            route("/updates", self._action(self._start_update, "/"), "POST"),
            route("/models/{id}/promote", self._action(self._promote, "/"), "POST"),
            route("/rollback", self._action(self._roll_back, "/"), "POST"),
            route("/items", self._action(self._set_available, "/lists"), "POST"),
            route("/login", self._ask_for_key),
            route("/login", self._sign_in, "POST"),
            route("/logout", self._sign_out, "POST"),
            PageRoute("/assets/{name}", asset_response, include_in_schema=False),
        ]

    # Pages

    def _overview(self, request: Request, visitor: Visitor) -> Response:
        config, health = self._workspace.config, self._running.health()
        overview = read_overview(self._workspace, before=whole_number(request.query_params.get("before")))
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
            quality_line=sparkline([scores.mean for _, scores in evaluated]),
            gap_line=sparkline([gap.value if (gap := gap_of(scores)) else None for _, scores in evaluated]),
            target=target_of(overview.newest),
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
        """Some rows, and whether there are more."""
        before = plain_text(request.query_params.get("before")) or None
        try:
            rows = read(self._workspace.engine, before=before, limit=_ROWS_AT_ONCE + 1)
        except DatabaseUnavailableError:
            raise
        except WorkspaceError:  # there is no such row
            rows = read(self._workspace.engine, before=None, limit=_ROWS_AT_ONCE + 1)
        return rows[:_ROWS_AT_ONCE], len(rows) > _ROWS_AT_ONCE

    def _lists(self, request: Request, visitor: Visitor) -> Response:
        user_id = plain_text(request.query_params.get("user"))
        after = plain_text(request.query_params.get("after"))
        withdrawn = items.listed(self._workspace.engine, available=False, after=after, limit=_ROWS_AT_ONCE + 1)
        answer, history, problem = None, list[str](), None
        if user_id:
            try:
                answer = self._running.recommend(user_id, min(20, self._workspace.config.limits.max_k))
            except FairstreamError as error:
                problem = str(error)
            if visitor.is_admin:  # what a person did is for nobody else to see
                history = EventStore(self._workspace).items_of(user_id)[-_HISTORY:][::-1]
        return self._html(
            "lists.html",
            request,
            visitor,
            user_id=user_id,
            answer=answer,
            history=history,
            problem=problem,
            withdrawn=withdrawn[:_ROWS_AT_ONCE],
            more=len(withdrawn) > _ROWS_AT_ONCE,
        )

    def _of_model(self, answer: Callable[[Request, Visitor, ModelStory], Response]) -> Page:
        def found(request: Request, visitor: Visitor) -> Response:
            story = read_model(self._workspace, request.path_params["id"])
            if story is None:
                return self._message(404, "Not found", "There is no such model.")
            return answer(request, visitor, story)

        return found

    def _model(self, request: Request, visitor: Visitor, story: ModelStory) -> Response:
        can_serve = story.model.state != "failed" and self._workspace.models.exists(story.model.folder)
        target = target_of(story.model)
        return self._html("model.html", request, visitor, story=story, target=target, can_serve=can_serve)

    def _audit_html(self, _: Request, __: Visitor, story: ModelStory) -> Response:
        css = Markup(next(iter(assets().values())).content.decode())  # noqa: S704 (our own style sheet)
        shared = {"name": self._name, "group": self._workspace.config.group, "made": now(), "css": css}
        page = render("audit.html", story=story, target=target_of(story.model), **shared)
        return download(f"audit-{story.model.id}.html", page, "text/html")

    def _audit_json(self, _: Request, __: Visitor, story: ModelStory) -> Response:
        content = audit_json(story, self._workspace.config, made=now())
        return download(f"audit-{story.model.id}.json", content, "application/json")

    # Buttons

    async def _start_update(self, _: Request, visitor: Visitor, __: Mapping[str, str]) -> str:
        await self._running.start_update(visitor.key)
        return "The update has been started."

    async def _promote(self, request: Request, visitor: Visitor, _: Mapping[str, str]) -> str:
        model_id = request.path_params["id"]
        await run_in_threadpool(registry.promote, self._workspace, model_id, by=visitor.key)
        return f"Model {model_id} has been promoted."

    async def _roll_back(self, _: Request, visitor: Visitor, __: Mapping[str, str]) -> str:
        model_id = await run_in_threadpool(registry.rollback, self._workspace, by=visitor.key)
        return f"Rolled back to model {model_id}."

    async def _set_available(self, _: Request, visitor: Visitor, form: Mapping[str, str]) -> str:
        item_id, is_available = plain_text(form.get("item")), form.get("available") == "yes"
        if not item_id:
            raise DataError("an item's id must have 1 to 256 printable characters")
        # Every process that serves, this one too, looks for such changes twice a second.
        await run_in_threadpool(items.set_available, self._workspace.engine, item_id, is_available, by=visitor.key)
        return f"Item {item_id} is {'back in' if is_available else 'out of'} every list."

    # Signing in

    def _ask_for_key(self, request: Request) -> Response:
        return self._login(to=local_path(request.query_params.get("to")))

    async def _sign_in(self, request: Request) -> Response:
        form = await read_form(request)
        if form is None or is_foreign(request):
            return self._login(400, "This form could not be read; type the key once more.")
        key, to = form.get("key", "").strip(), local_path(form.get("to"))
        try:
            holder = await run_in_threadpool(scope_of, self._workspace.engine, key)
        except WorkspaceError:
            return self._unavailable()
        if holder is None:
            return self._login(401, "This key is not known, or was revoked.", to)
        if holder.scope not in _MAY_READ:
            return self._login(
                403, f"The key “{holder.name}” has the scope {holder.scope}; read or admin is needed.", to
            )
        request.session.clear()
        request.session.update(key=holder.name, token=secrets.token_urlsafe(16))
        return redirect(to)

    def _sign_out(self, request: Request) -> Response:
        if not is_foreign(request):
            request.session.clear()
        return redirect("/login")

    def _visitor(self, request: Request) -> Visitor | None:
        """Whose session it is; revoking a key ends its sessions at once."""
        key, token = request.session.get("key"), request.session.get("token")
        if not key or not token:
            return None
        keys = schema.keys
        wanted = select(keys.c.scope).where(keys.c.name == key, keys.c.revoked.is_(None), keys.c.scope.in_(_MAY_READ))
        with reachable(self._workspace.engine), self._workspace.engine.connect() as connection:
            scope = connection.scalar(wanted)
        return None if scope is None else Visitor(key, scope, token)

    # What all of them share

    def _page(self, answer: Page) -> Callable[[Request], Response]:
        """A page for whoever is signed in; all others are asked for a key."""

        def endpoint(request: Request) -> Response:
            try:
                with reachable(self._workspace.engine):
                    visitor = self._visitor(request)
                    return to_login(request) if visitor is None else answer(request, visitor)
            except WorkspaceError:
                return self._unavailable()

        return endpoint

    def _action(self, act: Action, back: str) -> Callable[[Request], Awaitable[Response]]:
        """A button: only for keys of scope admin, only from our own forms; then the page `back` says how it went."""

        async def endpoint(request: Request) -> Response:
            form = await read_form(request)
            try:
                visitor = await run_in_threadpool(self._visitor, request)
            except WorkspaceError:
                return self._unavailable()
            if visitor is None:
                return to_login(request)
            sent = (form or {}).get("token", "").encode()
            if form is None or is_foreign(request) or not hmac.compare_digest(sent, visitor.token.encode()):
                return self._message(403, "Not done", "This form is no longer valid; load the page again.")
            if not visitor.is_admin:
                return self._message(403, "Not allowed", "This API key lacks the scope 'admin'.")
            try:
                request.session["flash"] = ["good", await act(request, visitor, form)]
            except FairstreamError as error:
                request.session["flash"] = ["bad", sentence(str(error))]
            return redirect(back)

        return endpoint

    def _html(self, template: str, request: Request, visitor: Visitor, **context: Any) -> Response:
        flash = request.session.pop("flash", None)
        config, tab = self._workspace.config, request.url.path.split("/")[1]
        shared = {"name": self._name, "config": config, "visitor": visitor, "flash": flash, "tab": tab}
        return html(render(template, **{"refresh": False, **shared, **context}))

    def _login(self, status: int = 200, problem: str | None = None, to: str = "/") -> Response:
        return html(render("login.html", name=self._name, problem=problem, to=to), status)

    def _message(self, status: int, title: str, words: str, headers: Mapping[str, str] | None = None) -> Response:
        return html(render("message.html", name=self._name, title=title, words=words), status, headers)

    def _unavailable(self) -> Response:
        words = "The database cannot be reached; try again in a moment."
        return self._message(503, "Not now", words, {"Retry-After": "5"})
