"""GET /v1/users/{user_id}/recommendations and POST /v1/recommendations."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Query, Response
from fastapi.routing import APIRoute
from pydantic import ConfigDict, Field, model_validator
from starlette.types import Receive, Scope, Send

from fairstream.data.filters import MAX_CHARACTERS
from fairstream.service.api.auth import KEY, Reader
from fairstream.service.api.errors import ApiError, problems
from fairstream.service.api.schemas import Body, Count, Id, Reply, UserId
from fairstream.service.api.service import RunningService, Service
from fairstream.service.incoming import MAX_LENGTH
from fairstream.service.serving import Answer, Ask

_DEFAULT_K = 20
_PLAIN_K = re.compile(rb"(?:k=([0-9]{1,6}))?")
_POPULARITY = b'"source":"popularity"'
_ERRORS = ("invalid", "invalid_filter", "not_ready", "model_failed")
router = APIRouter(tags=["recommend"])


class RecommendedItem(Reply):
    """An item of a list."""

    item_id: str
    score: float | None


class Recommendations(Reply):
    """The best items, best first."""

    user_id: str | None
    """Id of the person; null for an anonymous session."""
    model: str | None
    source: Literal["model", "popularity"] = Field(examples=["model"])
    """Popularity, if the model cannot score the person."""
    items: list[RecommendedItem]
    """The list, best first."""


class ManyRecommendations(Reply):
    """Several lists of one model."""

    model: str | None
    answers: list[Recommendations]
    """A list for each user or session, in the order of the request."""


class Question(Body):
    """Several lists: for users, or for anonymous sessions."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"users": ["ann", "bob"], "k": 5}]})

    users: list[Id] | None = Field(None, examples=[["ann", "bob"]])
    """Users; at most `limits.max_users`."""
    histories: list[list[Id]] | None = Field(None, examples=[[["alien", "blade-runner"]]])
    """Instead of users: the items that each anonymous session has had, in order."""
    k: Count | None = None
    exclude: list[Id] = Field([])
    only: list[Id] | None = None
    filter: str = Field("", max_length=MAX_CHARACTERS)

    @model_validator(mode="after")
    def _users_or_histories(self) -> Self:
        if (self.users is None) == (self.histories is None):
            raise ValueError('give either "users" or "histories"')
        return self


class ListRoute(APIRoute):
    """Answers a GET with no parameter but k without FastAPI's parsing, which costs more than a cached list.

    The declared function answers every other request and describes errors.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["app"].state.service
        user_id, query = scope["path_params"]["user_id"], _PLAIN_K.fullmatch(scope["query_string"])
        may_read = scope["method"] == "GET" and scope[KEY].scope in ("read", "admin")
        k = _DEFAULT_K if query is None or query[1] is None else int(query[1])
        if query and may_read and 1 <= len(user_id) <= MAX_LENGTH and 1 <= k <= service.limits.max_k:
            await (await _list(service, user_id, Ask(k)))(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


async def _list(service: Service, user_id: str, ask: Ask) -> Response:
    body = await service.lists.json(user_id, ask)
    service.metrics.lists.labels("popularity" if _POPULARITY in body else "model").inc()
    return Response(body, media_type="application/json")


async def recommend(
    service: RunningService,
    _: Reader,
    user_id: UserId,
    k: Annotated[int | None, Query(ge=1, description=f"Number of items; {_DEFAULT_K} by default.")] = None,
    exclude: Annotated[list[str], Query()] = [],  # noqa: B006
    only: Annotated[list[str] | None, Query()] = None,
    where: Annotated[str, Query(alias="filter", max_length=MAX_CHARACTERS)] = "",
) -> Response:
    """Recommend the best items to a user, without those the user has had; unknown users get popular items."""
    return await _list(service, user_id, Ask(_checked_k(service, k), where, tuple(exclude), only))


router.add_api_route(
    "/v1/users/{user_id:path}/recommendations",
    recommend,
    response_model=Recommendations,
    operation_id="recommend",
    responses=problems(*_ERRORS),
    route_class_override=ListRoute,
)


@router.post(
    "/v1/recommendations",
    operation_id="recommend_many",
    responses=problems(*_ERRORS, "body_too_large"),
)
async def recommend_many(service: RunningService, _: Reader, question: Question) -> ManyRecommendations:
    """Recommend to several users or anonymous sessions at once."""
    k, limit = _checked_k(service, question.k), service.limits.max_users
    if len(question.users or question.histories or []) > limit:
        raise ApiError("invalid", f"At most {limit} lists may be requested at once.")
    return await asyncio.get_running_loop().run_in_executor(service.list_threads, _many, service, question, k)


def _many(service: Service, question: Question, k: int) -> ManyRecommendations:
    current = service.serving.current
    if question.users and question.only is None:
        current.make_lists(question.users, k)
    filters = (question.exclude, question.only, question.filter)
    answers = [_written(user, current.recommend(user, k, *filters)) for user in question.users or ()]
    answers += [_written(None, current.recommend_session(items, k, *filters)) for items in question.histories or ()]
    for answer in answers:
        service.metrics.lists.labels(answer.source).inc()
    return ManyRecommendations(model=current.id, answers=answers)


def _written(user_id: str | None, answer: Answer) -> Recommendations:
    items = [
        RecommendedItem(item_id=item, score=score) for item, score in zip(answer.items, answer.scores, strict=True)
    ]
    return Recommendations(user_id=user_id, model=answer.model, source=answer.source, items=items)


def _checked_k(service: Service, k: int | None) -> int:
    max_k = service.limits.max_k
    if k is None:
        return min(_DEFAULT_K, max_k)
    if k > max_k:
        raise ApiError("invalid", f"k must be at most {max_k}.")
    return k
