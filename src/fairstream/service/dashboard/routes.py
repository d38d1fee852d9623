"""The routes of the dashboard: pages for keys of scope read, buttons for keys of scope admin."""

from __future__ import annotations

import hmac
import secrets
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from fairstream.errors import FairstreamError, WorkspaceError
from fairstream.service import experiments, items, registry, rules, schema, updates
from fairstream.service.budget import PrivacyStatus
from fairstream.service.dashboard import web
from fairstream.service.dashboard.buttons import Button, buttons, last_entry
from fairstream.service.dashboard.overview import (
    Days,
    Overview,
    control_charts,
    quality_charts,
    status_of,
    stream_charts,
)
from fairstream.service.dashboard.shop import chosen_most, reasons, result_charts, rule_words, shown, titles
from fairstream.service.database import reading
from fairstream.service.event_store import EventStore
from fairstream.service.impressions import published_results
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
_LIST_LENGTH = _HISTORY = 20
_RANGES = (7, 30, 90)  # days


class Health(NamedTuple):
    """The state of the serving process."""

    source: ServedBy | None = "model"  # what lists come from; None before anything is loaded
    problem: str | None = None  # the problem in a sentence
    n_lists: int = 0
    n_fallbacks: int = 0  # lists by popularity, of users whom the model cannot score


class Running(Protocol):
    """The part of the service that the pages use."""

    def health(self) -> Health: ...
    def recommend(self, user_id: str, ask: Ask) -> Answer: ...
    def request_update(self, by: str) -> Coroutine[Any, Any, object]: ...
    def seconds_to_wait(self, peer: str) -> int: ...  # before an address may try another key


class Visitor(NamedTuple):
    """The signed-in key."""

    key: str
    scope: str
    token: str  # every form sends it back; another site cannot know it

    @property
    def is_admin(self) -> bool:
        return self.scope == "admin"


Form = Mapping[str, str]
Answering = Callable[[Request, Form | None], Response]
"""Answers a request; its form is None if it has none, or an unreadable one."""
Read = Callable[[Request, Visitor], dict[str, Any]]
"""Reads what the template of a page shows."""


class Dashboard:
    """The dashboard of a workspace."""

    def __init__(self, workspace: Workspace, running: Running) -> None:
        self._workspace, self._engine, self._running = workspace, workspace.engine, running
        self._name = workspace.folder.resolve().name

    def routes(self) -> list[BaseRoute]:
        # Derived from the workspace's secret: every process and machine that serves it accepts the cookie.
        secret = hmac.digest(self._workspace.secret, b"dashboard sessions", "sha256").hex()
        sessions = [Middleware(web.Sessions, secret=secret)]
        changes = buttons(self._workspace, self._running.request_update)

        def route(path: str, answer: Answering, method: str = "GET") -> BaseRoute:
            async def endpoint(request: Request) -> Response:
                form = await web.read_form(request) if method == "POST" else None
                return await run_in_threadpool(self._guarded, answer, request, form)

            return web.PageRoute(path, endpoint, methods=[method], include_in_schema=False, middleware=sessions)

        return [
            route("/", self._page("overview.html", self._overview)),
            route("/models", self._page("models.html", self._models)),
            route("/models/{id}", self._page("model.html", self._model)),
            route("/updates", self._page("updates.html", self._updates)),
            route("/lists", self._page("lists.html", self._lists)),
            route("/items", self._page("items.html", self._items)),
            route("/experiments", self._page("experiments.html", self._experiments)),
            *(route(path, self._action(button), "POST") for path, button in changes.items()),
            route("/login", lambda request, _: self._login(request, to=request.query_params.get("to"))),
            route("/login", self._sign_in, "POST"),
            route("/logout", self._sign_out, "POST"),
            web.PageRoute("/assets/{name}", web.asset_response, include_in_schema=False),
        ]

    def _guarded(self, answer: Answering, request: Request, form: Form | None) -> Response:
        try:
            return answer(request, form)
        except UnknownIdError:
            return self._message(request, 404, "Not found", "There is no such page.")
        except WorkspaceError:
            words = "The database cannot be reached; try again in a moment."
            return self._message(request, 503, "Service unavailable", words, {"Retry-After": "5"})

    # ── pages ────────────────────────────────────────────────────────────────────────────

    def _overview(self, request: Request, _: Visitor) -> dict[str, Any]:
        config, health, query = self._workspace.config, self._running.health(), request.query_params
        n_days = web.whole_number(query.get("days"))
        days = Days.latest(n_days) if n_days in _RANGES else Days(web.day(query.get("from")), web.day(query.get("to")))
        overview = Overview(self._workspace, days)
        return {
            "overview": overview,
            "health": health,
            "status": status_of(overview, health.source, health.problem, config.alerts.after),
            "charts": [*quality_charts(overview, config), *control_charts(overview)],
            "results": result_charts(self._engine, days),
            "shown": shown(self._engine),
            "people": published_results(self._engine),
            "privacy": PrivacyStatus.of(self._engine, config.privacy),
            "stream": stream_charts(overview),
            "ranges": _RANGES,
            "refresh": overview.running is not None,
        }

    def _models(self, request: Request, _: Visitor) -> dict[str, Any]:
        rows, more = self._paged(registry.models, request)
        service = registry.in_service(self._engine)
        return {"models": rows, "more": more, "serving": service and service.model}

    def _model(self, request: Request, _: Visitor) -> dict[str, Any]:
        model = registry.model(self._engine, web.plain_text(request.path_params["id"]))
        service = registry.in_service(self._engine)
        since = service.since if service and service.model == model.id else None
        can_serve = self._workspace.models.exists(model.folder)
        return {"model": model, "since": since, "can_serve": can_serve}

    def _updates(self, request: Request, _: Visitor) -> dict[str, Any]:
        rows, more = self._paged(updates.listed, request)
        return {"updates": rows, "more": more}

    def _paged(self, read: Callable[..., list[_Row]], request: Request) -> tuple[list[_Row], bool]:
        before = web.plain_text(request.query_params.get("before")) or None
        rows = read(self._engine, before=before, limit=_PAGE_SIZE + 1)
        return rows[:_PAGE_SIZE], len(rows) > _PAGE_SIZE

    def _lists(self, request: Request, visitor: Visitor) -> dict[str, Any]:
        user_id, kinds = web.plain_text(request.query_params.get("user")), self._workspace.config.events
        answer, why, history, problem, experiment = None, dict[str, list[str]](), list[str](), None, None
        may_see = visitor.scope in _HISTORY_SCOPES  # histories are personal data, and reasons name items of them
        if user_id:
            try:
                ask = Ask(min(_LIST_LENGTH, self._workspace.config.limits.max_k), explain=may_see)
                answer = self._running.recommend(user_id, ask)
                experiment = self._experiment_with(user_id)
                why = reasons(self._running.recommend, user_id, answer, self._rules_of(experiment))
            except FairstreamError as error:
                problem = str(error)
            if may_see:
                history = EventStore(self._workspace).items_of(user_id)[-_HISTORY:][::-1]
        sells = conversions(kinds)
        tops = {
            "shown": shown(self._engine).most,
            "sold": chosen_most(self._engine, sells),
            "chosen": chosen_most(self._engine, kinds.learned),
        }
        named = [*(answer.items if answer else ()), *history, *(item for top in tops.values() for item, _ in top)]
        return {
            "user_id": user_id,
            "answer": answer,
            "experiment": experiment,
            "why": why,
            "history": history,
            "may_see": may_see,
            "problem": problem,
            "sells": sells,
            "titles": titles(self._engine, named),
            **tops,
        }

    def _experiment_with(self, user_id: str) -> experiments.Experiment | None:
        """Return the running experiment if it gives a user the lists of B."""
        with reading(self._engine) as connection:
            experiment = experiments.running(connection)
        if experiment is None or experiment.mode != "split":
            return None
        return experiment if experiment.arms(self._workspace.secret).arm_of(user_id) == "B" else None

    def _rules_of(self, experiment: experiments.Experiment | None) -> list[rules.Rule]:
        own = None if experiment is None else experiment.options.rules
        kinds = self._workspace.config.items.properties
        return rules.stored(self._engine) if own is None else rules.rules_from_json(own, kinds)

    def _experiments(self, _: Request, __: Visitor) -> dict[str, Any]:
        with reading(self._engine) as connection:
            latest = experiments.listed(connection, _PAGE_SIZE)
        service, kept = registry.in_service(self._engine), self._workspace.models.names()
        serving = service and service.model
        others = [model for model in registry.models(self._engine) if model.id != serving and model.folder in kept]
        experiment = next(iter(latest), None)
        return {"experiment": experiment, "earlier": latest[1:], "serving": serving, "others": others}

    def _items(self, request: Request, _: Visitor) -> dict[str, Any]:
        query = request.query_params
        words, withdrawn = web.plain_text(query.get("q")), query.get("withdrawn") == "yes"
        after = web.plain_text(query.get("after"))
        rows = items.listed(self._engine, False if withdrawn else None, after, _PAGE_SIZE + 1, words)
        return {
            "items": rows[:_PAGE_SIZE],
            "more": len(rows) > _PAGE_SIZE,
            "words": words,
            "withdrawn": withdrawn,
            "rules": [rule_words(rule) for rule in rules.stored(self._engine)],
            "last": last_entry(self._engine, ["item"]),
            "last_rules": last_entry(self._engine, ["rules"]),
        }

    def _page(self, template: str, read: Read) -> Answering:
        """Return a page for signed-in visitors; others are sent to the login."""

        def answer(request: Request, _: Form | None) -> Response:
            visitor = self._visitor(request)
            if visitor is None:
                return web.to_login(request)
            return self._html(template, request, visitor, **read(request, visitor))

        return answer

    # ── buttons ──────────────────────────────────────────────────────────────────────────

    def _action(self, button: Button) -> Answering:
        """Return the answer to a button: for admin keys and our own forms; it acts once it is confirmed."""

        def answer(request: Request, form: Form | None) -> Response:
            visitor = self._visitor(request)
            if visitor is None:
                return web.to_login(request)
            if form is None or not hmac.compare_digest(form.get("token", "").encode(), visitor.token.encode()):
                words = "This form is no longer valid; load the page again."
                return self._message(request, 403, "Form expired", words)
            if not visitor.is_admin:
                return self._message(request, 403, "Not allowed", "This API key lacks the scope 'admin'.")
            if form.get("confirmed") != "yes":
                return self._html("ask.html", request, visitor, **self._question(request, button, form))
            try:
                request.session["flash"] = ["good", button.act(visitor.key, {**form, **request.path_params})]
            except FairstreamError as error:
                request.session["flash"] = ["bad", sentence(str(error))]
            return web.redirect(request, button.back)

        return answer

    def _question(self, request: Request, button: Button, form: Form) -> dict[str, Any]:
        fields = {name: value for name, value in form.items() if name != "token"}
        return {
            "question": button.question.format_map(defaultdict(lambda: "–", {**fields, **request.path_params})),
            "button": button,
            "fields": fields,
            "path": web.path_of(request),
            "last": last_entry(self._engine, button.kinds),
            "runs": updates.listed(self._engine, limit=1) if "update" in button.kinds else [],
        }

    # ── signing in ───────────────────────────────────────────────────────────────────────

    def _sign_in(self, request: Request, form: Form | None) -> Response:
        if form is None:
            return self._login(request, 400, "The form could not be read; enter the key again.")
        key, to = form.get("key", "").strip(), form.get("to")
        if (wait := self._running.seconds_to_wait(request.client.host if request.client else "unknown")) > 0:
            return self._login(request, 429, f"Too many attempts; try again in {wait} s.", to)
        holder = find_key(self._engine, key)
        if holder is None:
            return self._login(request, 401, "This key is unknown or revoked.", to)
        name, scope = holder
        if scope not in _READ_SCOPES:
            return self._login(request, 403, f"The key “{name}” has the scope {scope}; read or admin is needed.", to)
        request.session.clear()
        request.session.update(key=name, token=secrets.token_urlsafe(16))
        return web.redirect(request, web.local_path(to))

    def _sign_out(self, request: Request, _: Form | None) -> Response:
        if token := request.session.get("token"):
            request.session.clear()
            web.end_session(self._engine, token)
        return web.redirect(request, "/login")

    def _visitor(self, request: Request) -> Visitor | None:
        """Return the key of the session; revoking the key or signing out ends it at once, on every machine."""
        key, token = request.session.get("key"), request.session.get("token")
        if not key or not token:
            return None
        keys = schema.keys
        query = select(keys.c.scope).where(keys.c.name == key, keys.c.revoked.is_(None), keys.c.scope.in_(_READ_SCOPES))
        with reading(self._engine) as connection:
            scope = connection.scalar(query.where(~web.has_ended(token)))
        return None if scope is None else Visitor(key, scope, token)

    # ── answers ──────────────────────────────────────────────────────────────────────────

    def _html(self, template: str, request: Request, visitor: Visitor, **context: Any) -> Response:
        shared = {
            "config": self._workspace.config,
            "visitor": visitor,
            "flash": request.session.pop("flash", None),
            "refresh": False,
            "tab": web.path_of(request).split("/")[1],
        }
        return web.html(self._render(template, request, **{**shared, **context}))

    def _login(
        self, request: Request, status: int = 200, problem: str | None = None, to: str | None = None
    ) -> Response:
        return web.html(self._render("login.html", request, problem=problem, to=web.local_path(to)), status)

    def _message(
        self, request: Request, status: int, title: str, words: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        return web.html(self._render("message.html", request, title=title, words=words), status, headers)

    def _render(self, template: str, request: Request, **context: Any) -> str:
        return web.render(template, name=self._name, root=web.root_of(request.scope), **context)
