"""The routes of the dashboard: pages for keys of scope read, buttons for keys of scope admin."""

from __future__ import annotations

import hmac
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from fairstream.errors import FairstreamError, WorkspaceError
from fairstream.pages.rendering import read_asset
from fairstream.service import items, registry, rules, schema, updates
from fairstream.service.budget import PrivacyStatus
from fairstream.service.dashboard import web
from fairstream.service.dashboard.buttons import Button, buttons
from fairstream.service.dashboard.charts import sparkline
from fairstream.service.dashboard.overview import late, newcomers, quality_charts, status_of, stream_charts
from fairstream.service.dashboard.reading import Days, ModelStory, Overview, audit_json, last_entry
from fairstream.service.dashboard.shop import chosen_most, reasons, result_charts, rule_words, shown, titles
from fairstream.service.database import now, reachable, reading
from fairstream.service.event_store import EventStore
from fairstream.service.experiments import listed as listed_experiments
from fairstream.service.gaps import gap_in
from fairstream.service.keys import find_key
from fairstream.service.lists import Answer, Ask
from fairstream.service.records import UnknownIdError
from fairstream.service.serving import ServedBy
from fairstream.service.tally import conversions
from fairstream.service.workspace import Workspace
from fairstream.text import sentence

_Row = TypeVar("_Row")
_READ_SCOPES, _HISTORY_SCOPES = ("read", "history", "admin"), ("history", "admin")
_PAGE_SIZE = 25
_HISTORY = 20
_RANGES = (7, 30, 90)  # days


class Health(NamedTuple):
    """The state of the serving process."""

    started: datetime
    n_requests: int
    n_errors: int
    p50_seconds: float | None
    p99_seconds: float | None
    source: ServedBy | None = "model"  # what lists come from; None before anything is loaded
    problem: str | None = None  # the problem in a sentence
    n_lists: int = 0
    n_fallbacks: int = 0  # lists by popularity, of users whom the model cannot score


class Running(Protocol):
    """The part of the service that the pages use."""

    def health(self) -> Health: ...
    def recommend(self, user_id: str, ask: Ask) -> Answer: ...
    async def request_update(self, by: str) -> object: ...
    def seconds_to_wait(self, peer: str) -> int: ...  # before an address may try another key


class Visitor(NamedTuple):
    """The signed-in key."""

    key: str
    scope: str
    token: str  # every form sends it back; another site cannot know it

    @property
    def is_admin(self) -> bool:
        return self.scope == "admin"


Page = Callable[[Request, Visitor], Response]


class Dashboard:
    """The dashboard of a workspace."""

    def __init__(self, workspace: Workspace, running: Running) -> None:
        self._workspace, self._running = workspace, running
        self._name = workspace.folder.resolve().name

    def routes(self) -> list[BaseRoute]:
        # Derived from the workspace's secret: every process and machine that serves it accepts the cookie.
        secret = hmac.digest(self._workspace.secret, b"dashboard sessions", "sha256").hex()
        sessions = [Middleware(web.Sessions, secret=secret)]
        changes = buttons(self._workspace, self._running.request_update)

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
            route("/items", self._page(self._items)),
            route("/experiments", self._page(self._experiments)),
            *(route(path, self._action(button), "POST") for path, button in changes.items()),
            route("/login", lambda request: self._login(request, to=web.local_path(request.query_params.get("to")))),
            route("/login", self._sign_in, "POST"),
            route("/logout", self._sign_out, "POST"),
            web.PageRoute("/assets/{name}", web.asset_response, include_in_schema=False),
        ]

    def _overview(self, request: Request, visitor: Visitor) -> Response:
        config, health, given = self._workspace.config, self._running.health(), request.query_params
        n_days = web.whole_number(given.get("days"))
        days = Days.latest(n_days) if n_days in _RANGES else Days(web.day(given.get("from")), web.day(given.get("to")))
        overview = Overview(self._workspace, days=days, before=web.whole_number(given.get("before")))
        evaluated = overview.evaluated
        return self._html(
            "overview.html",
            request,
            visitor,
            overview=overview,
            health=health,
            status=status_of(overview, health.source, health.problem, config.alerts.after),
            charts=quality_charts(overview, config),
            results=result_charts(self._workspace.engine, days),
            shown=shown(self._workspace.engine),
            privacy=PrivacyStatus.of(self._workspace.engine, config.privacy),
            stream=stream_charts(overview),
            quality_line=sparkline([score["mean"] for _, score in evaluated]),
            gap_line=sparkline([gap.value if (gap := gap_in(score)) else None for _, score in evaluated]),
            newcomers=newcomers,
            late=late,
            ranges=_RANGES,
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
        answer, why, history, problem = None, dict[str, list[str]](), list[str](), None
        may_see = visitor.scope in _HISTORY_SCOPES  # histories are personal data, and reasons name items of them
        if user_id:
            try:
                ask = Ask(min(20, self._workspace.config.limits.max_k), explain=may_see)
                answer = self._running.recommend(user_id, ask)
                why = reasons(self._running.recommend, user_id, answer, rules.stored(self._workspace.engine))
            except FairstreamError as error:
                problem = str(error)
            if may_see:
                history = EventStore(self._workspace).items_of(user_id)[-_HISTORY:][::-1]
        engine, kinds = self._workspace.engine, self._workspace.config.events
        sells = conversions(kinds)
        chosen = chosen_most(engine, kinds.learned)
        tops = {"shown": shown(engine).most, "sold": chosen_most(engine, sells), "chosen": chosen}
        asked = {"user_id": user_id, "answer": answer, "why": why, "history": history, "may_see": may_see}
        listed = [*(answer.items if answer else ()), *history, *(item for top in tops.values() for item, _ in top)]
        named = {"titles": titles(engine, listed), "sells": sells, "problem": problem}
        return self._html("lists.html", request, visitor, **asked, **tops, **named)

    def _experiments(self, request: Request, visitor: Visitor) -> Response:
        engine, kept = self._workspace.engine, self._workspace.models.names()
        with reading(engine) as connection:
            found = listed_experiments(connection, _PAGE_SIZE)
        service = registry.in_service(engine)
        serving = service and service.model
        others = [model for model in registry.models(engine) if model.id != serving and model.folder in kept]
        shown = {"experiment": next(iter(found), None), "earlier": found[1:], "serving": serving, "others": others}
        return self._html("experiments.html", request, visitor, **shown)

    def _items(self, request: Request, visitor: Visitor) -> Response:
        given, engine = request.query_params, self._workspace.engine
        words, after = web.plain_text(given.get("q")), web.plain_text(given.get("after"))
        is_available = False if given.get("withdrawn") == "yes" else None
        rows = items.listed(engine, is_available, after, _PAGE_SIZE + 1, words)
        found = {"found": rows[:_PAGE_SIZE], "more": len(rows) > _PAGE_SIZE, "words": words}
        found |= {"withdrawn": is_available is False, "rules": [rule_words(rule) for rule in rules.stored(engine)]}
        last = {"last": last_entry(engine, ["item"]), "last_rules": last_entry(engine, ["rules"])}
        return self._html("items.html", request, visitor, **found, **last)

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

    async def _sign_in(self, request: Request) -> Response:
        form = await web.read_form(request)
        if form is None or web.is_foreign(request):
            return self._login(request, 400, "The form could not be read; enter the key again.")
        key, to = form.get("key", "").strip(), web.local_path(form.get("to"))
        if (wait := self._running.seconds_to_wait(request.client.host if request.client else "unknown")) > 0:
            return self._login(request, 429, f"Too many attempts; try again in {wait} s.", to)
        try:
            holder = await run_in_threadpool(find_key, self._workspace.engine, key)
        except WorkspaceError:
            return self._unavailable(request)
        if holder is None:
            return self._login(request, 401, "This key is unknown or revoked.", to)
        name, scope = holder
        if scope not in _READ_SCOPES:
            return self._login(request, 403, f"The key “{name}” has the scope {scope}; read or admin is needed.", to)
        request.session.clear()
        request.session.update(key=name, token=secrets.token_urlsafe(16))
        return web.redirect(request, to)

    def _sign_out(self, request: Request) -> Response:
        if not web.is_foreign(request) and (token := request.session.get("token")):
            request.session.clear()
            try:
                web.end_session(self._workspace.engine, token)
            except WorkspaceError:
                return self._unavailable(request)
        return web.redirect(request, "/login")

    def _visitor(self, request: Request) -> Visitor | None:
        """Return the key of the session; revoking the key or signing out ends it at once, on every machine."""
        key, token = request.session.get("key"), request.session.get("token")
        if not key or not token:
            return None
        keys = schema.keys
        query = select(keys.c.scope).where(keys.c.name == key, keys.c.revoked.is_(None), keys.c.scope.in_(_READ_SCOPES))
        query = query.where(~web.has_ended(token))
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
                return self._message(request, 404, "Not found", "There is no such model.")
            except WorkspaceError:
                return self._unavailable(request)

        return endpoint

    def _action(self, button: Button) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a button: for admin keys and our own forms; it acts once it is confirmed."""

        async def endpoint(request: Request) -> Response:
            form = await web.read_form(request)
            try:
                visitor = await run_in_threadpool(self._visitor, request)
                if visitor is None:
                    return web.to_login(request)
                token = (form or {}).get("token", "").encode()
                if form is None or web.is_foreign(request) or not hmac.compare_digest(token, visitor.token.encode()):
                    return self._message(
                        request, 403, "Form expired", "This form is no longer valid; load the page again."
                    )
                if not visitor.is_admin:
                    return self._message(request, 403, "Not allowed", "This API key lacks the scope 'admin'.")
                if form.get("confirmed") != "yes":
                    return await run_in_threadpool(self._ask, request, visitor, button, form)
            except WorkspaceError:
                return self._unavailable(request)
            try:
                request.session["flash"] = ["good", await button.act(request, visitor.key, form)]
            except FairstreamError as error:
                request.session["flash"] = ["bad", sentence(str(error))]
            return web.redirect(request, button.back)

        return endpoint

    def _ask(self, request: Request, visitor: Visitor, button: Button, form: dict[str, str]) -> Response:
        fields = {name: value for name, value in form.items() if name != "token"}
        question = button.question.format_map(defaultdict(lambda: "–", {**fields, **request.path_params}))
        with reachable(self._workspace.engine):
            last = last_entry(self._workspace.engine, button.kinds)
            runs = updates.listed(self._workspace.engine, limit=1) if "update" in button.kinds else []
        path = web.path_of(request)
        shown = {"question": question, "button": button, "fields": fields, "last": last, "runs": runs, "path": path}
        return self._html("ask.html", request, visitor, **shown)

    def _html(self, template: str, request: Request, visitor: Visitor, **context: Any) -> Response:
        flash = request.session.pop("flash", None)
        shared = {"config": self._workspace.config, "visitor": visitor, "flash": flash, "refresh": False}
        tab = web.path_of(request).split("/")[1]
        return web.html(self._render(template, request, **{**shared, "tab": tab, **context}))

    def _render(self, template: str, request: Request, **context: Any) -> str:
        return web.render(template, name=self._name, root=web.root_of(request.scope), **context)

    def _login(self, request: Request, status: int = 200, problem: str | None = None, to: str = "/") -> Response:
        return web.html(self._render("login.html", request, problem=problem, to=to), status)

    def _message(
        self, request: Request, status: int, title: str, words: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        return web.html(self._render("message.html", request, title=title, words=words), status, headers)

    def _unavailable(self, request: Request) -> Response:
        words = "The database cannot be reached; try again in a moment."
        return self._message(request, 503, "Service unavailable", words, {"Retry-After": "5"})
