"""GET /v1/users/{user_id}/recommendations and POST /v1/recommendations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal, Self, TypeVar

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.types import ASGIApp, Receive, Scope, Send

from fairstream.service.api.auth import KEY, Reader
from fairstream.service.api.errors import ApiError, problems
from fairstream.service.api.monitoring import ROUTE
from fairstream.service.api.schemas import Id, UserId
from fairstream.service.api.service import RECOMMENDATIONS, RunningService, Service
from fairstream.service.fields import MAX_LENGTH
from fairstream.service.serving import Answer

T = TypeVar("T")
_DEFAULT_K = 20
_PREFIX, _SUFFIX = "/v1/users/", "/recommendations"
_POPULARITY = b'"source":"popularity"'
router = APIRouter(tags=["recommend"])


class Item(BaseModel):
    """One place of a list."""

    item_id: str
    score: float


class Recommendations(BaseModel):
    """The best items, best first."""

    user_id: str | None
    """None: an anonymous session."""
    model: str | None
    """None: there is no model yet, and popularity answers."""
    source: Literal["model", "popularity"]
    """"popularity" where the model has nothing to say."""
    items: list[Item]


class ManyRecommendations(BaseModel):
    """A list for each user or session, in their order, all of one model."""

    model: str | None
    answers: list[Recommendations]


class Question(BaseModel):
    """Several lists: for users, or for anonymous sessions given by the items they have had, in order."""

    model_config = ConfigDict(extra="forbid")

    users: list[Id] | None = None
    histories: list[list[Id]] | None = None
    k: int | None = Field(None, ge=1, strict=True)
    exclude: list[Id] = []
    """Items that must not be in the lists."""
    only: list[Id] | None = None
    """The only items that may be in the lists."""

    @model_validator(mode="after")
    def _users_or_histories(self) -> Self:
        if (self.users is None) == (self.histories is None):
            raise ValueError('give either "users" or "histories"')
        return self


@router.get(
    "/v1/users/{user_id:path}/recommendations",
    response_model=Recommendations,
    operation_id="recommend",
    responses=problems(404, 422),
)
async def recommend(
    service: RunningService,
    _: Reader,
    user_id: UserId,
    k: Annotated[int | None, Query(ge=1, description=f"Number of items; {_DEFAULT_K} by default.")] = None,
    exclude: Annotated[list[str], Query(description="Items to leave out; repeat it for several.")] = [],  # noqa: B006
    only: Annotated[list[str] | None, Query(description="The only items allowed; repeat it for several.")] = None,
) -> Response:
    """A user's best items, without what the user has had; unknown users get what is popular."""
    k = _checked_k(service, k)
    if not exclude and only is None:
        body = await service.lists.json(user_id, k)
        _count(service, _POPULARITY in body)
        return Response(body, media_type="application/json")
    answer = await _computed(service, partial(service.serving.recommend, user_id, k, exclude, only))
    _count(service, answer.source == "popularity")
    return Response(_written(user_id, answer).model_dump_json(), media_type="application/json")


@router.post("/v1/recommendations", operation_id="recommend_many", responses=problems(400, 413, 422))
async def recommend_many(service: RunningService, _: Reader, question: Question) -> ManyRecommendations:
    """The same for several users or anonymous sessions at once."""
    k, limit = _checked_k(service, question.k), service.limits.max_users
    if len(question.users or question.histories or []) > limit:
        raise ApiError(422, f"At most {limit} lists may be requested at once.")
    return await _computed(service, partial(_many, service, question, k))


def _many(service: Service, question: Question, k: int) -> ManyRecommendations:
    current = service.serving.current
    if question.users and question.only is None:
        current.make_lists(question.users, k + len(question.exclude))
    answers = [
        *(_written(user, current.recommend(user, k, question.exclude, question.only)) for user in question.users or ()),
        *(
            _written(None, current.recommend_session(items, k, question.exclude, question.only))
            for items in question.histories or ()
        ),
    ]
    for answer in answers:
        _count(service, answer.source == "popularity")
    return ManyRecommendations(model=current.id, answers=answers)


def _written(user_id: str | None, answer: Answer) -> Recommendations:
    items = [Item(item_id=item, score=score) for item, score in zip(answer.items, answer.scores, strict=True)]
    return Recommendations(user_id=user_id, model=answer.model, source=answer.source, items=items)


def _checked_k(service: Service, k: int | None) -> int:
    max_k = service.limits.max_k
    if k is None:
        return min(_DEFAULT_K, max_k)
    if k > max_k:
        raise ApiError(422, f"k must be at most {max_k}.")
    return k


async def _computed(service: Service, make: Callable[[], T]) -> T:
    """What takes some milliseconds, done in a thread."""
    return await asyncio.get_running_loop().run_in_executor(service.list_threads, make)


def _count(service: Service, is_popularity: bool) -> None:
    service.metrics.lists.labels("popularity" if is_popularity else "model").inc()


class ListShortcut:
    """Middleware: answers the commonest request before routing, which costs more than a list; others are passed on.

    That is a list for a user, with a key that may read, and with nothing but k to it. The bytes are those of the route,
    which answers whatever is refused or goes wrong, too.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        labels = service.metrics.lists.labels
        self._by_model, self._by_popularity = labels("model"), labels("popularity")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        question = self._question(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        body = None
        if question is not None:
            with suppress(Exception):  # the route says what is wrong
                body = await self._service.lists.json(*question)
        if body is None:
            await self._app(scope, receive, send)
            return
        scope[ROUTE] = RECOMMENDATIONS
        (self._by_popularity if _POPULARITY in body else self._by_model).inc()
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _question(self, scope: Scope) -> tuple[str, int] | None:
        """Whose list of how many items is requested; None where the route has to look."""
        path: str = scope["path"]
        if not (path.startswith(_PREFIX) and path.endswith(_SUFFIX)) or scope[KEY].scope not in ("read", "admin"):
            return None
        user_id, query, max_k = path[len(_PREFIX) : -len(_SUFFIX)], scope["query_string"], self._service.limits.max_k
        k = min(_DEFAULT_K, max_k)
        if query:
            if not (query.startswith(b"k=") and query[2:].isdigit() and len(query) < 8):
                return None
            if not 1 <= (k := int(query[2:])) <= max_k:
                return None
        return (user_id, k) if 1 <= len(user_id) <= MAX_LENGTH else None
