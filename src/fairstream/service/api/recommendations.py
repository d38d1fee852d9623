"""Lists: for a user, for many users or sessions, of similar items, and of popular ones."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable
from itertools import count
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import ConfigDict, Field, model_validator
from starlette.types import Receive, Scope, Send

from fairstream.data.filters import MAX_CHARACTERS
from fairstream.service.api.auth import HISTORY_SCOPES, KEY, READ_SCOPES, CachedKey, Reader
from fairstream.service.api.errors import ApiError, problems
from fairstream.service.api.schemas import JSON, Body, Count, Id, ItemId, Reply, UserId, json_body_of, parse_body
from fairstream.service.api.service import RunningService, Service
from fairstream.service.incoming import MAX_LENGTH
from fairstream.service.lists import Answer, Ask, with_user, written

_DEFAULT_K = 20
_NUMBER = f"Number of items; {_DEFAULT_K} by default."
_EXCLUDE, _ONLY = "Items that must not be in a list.", "The only items that may be in a list."
_FILTER, _EXPLAIN = "A condition on the properties of items.", "Whether to say why: `because` for each item."
_A_FILTER = 'category = "shoes" and price < 50 and stock > 0'
K = Annotated[int | None, Query(ge=1, description=_NUMBER, examples=[20])]
Where = Annotated[str, Query(alias="filter", max_length=MAX_CHARACTERS, description=_FILTER, examples=[_A_FILTER])]
_PLAIN_K = re.compile(rb"(?:k=([0-9]{1,6}))?")
_POPULARITY = b'"source":"popularity"'
_PROCESS, _numbers = secrets.token_hex(4).encode(), count(1)
_ERRORS = ("invalid_filter", "not_ready", "model_failed")
router = APIRouter(tags=["recommend"])


class RecommendedItem(Reply):
    """An item of a list."""

    item_id: str = Field(examples=["alien"])
    """Id of the item."""
    score: float | None = Field(examples=[3.25])
    """The model's score; null in a list by popularity."""
    because: str | None = Field(None, examples=["aliens"])
    """With `explain`: the item that the person has had and that is most similar to this one."""


class Recommendations(Reply):
    """The best items, best first."""

    list_id: str = Field(examples=["4f1c2a90-1b3"])
    """Names this list, for `POST /v1/impressions`."""
    user_id: str | None = Field(examples=["ann"])
    """Id of the person; null for a session, and for lists of similar or popular items."""
    model: str | None = Field(examples=["m00012"])
    """Id of the model; null if there is none yet."""
    source: Literal["model", "popularity"] = Field(examples=["model"])
    """Popularity, if the model cannot score the person."""
    items: list[RecommendedItem]
    """The list, best first."""


class ManyRecommendations(Reply):
    """Several lists of one model."""

    model: str | None = Field(examples=["m00012"])
    """Id of the model; null if there is none yet."""
    answers: list[Recommendations]
    """A list for each user or session, in the order of the request."""


class Question(Body):
    """Several lists: for users, or for anonymous sessions."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"users": ["ann", "bob"], "k": 5}]})

    users: list[Id] | None = Field(None, examples=[["ann", "bob"]])
    """Users; at most `limits.max_users`."""
    histories: list[list[Id]] | None = Field(None, examples=[[["alien", "blade-runner"]]])
    """Instead of users: the items that each anonymous session has had, in order."""
    k: Count | None = Field(None, description=_NUMBER, examples=[20])
    exclude: list[Id] = Field([], description=_EXCLUDE, examples=[["alien"]])
    only: list[Id] | None = Field(None, description=_ONLY, examples=[["alien", "heat"]])
    filter: str = Field("", max_length=MAX_CHARACTERS, description=_FILTER, examples=[_A_FILTER])
    explain: bool = Field(False, description=_EXPLAIN)

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
        may_read = scope["method"] == "GET" and scope[KEY].scope in READ_SCOPES
        k = _DEFAULT_K if query is None or query[1] is None else int(query[1])
        if query and may_read and 1 <= len(user_id) <= MAX_LENGTH and 1 <= k <= service.limits.max_k:
            await (await _list(service, user_id, Ask(k)))(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


async def _list(service: Service, user_id: str, ask: Ask) -> Response:
    begin = time.perf_counter()
    body = await service.lists.json(user_id, ask)
    by_model = _POPULARITY not in body
    service.metrics.lists("model" if by_model else "popularity").inc()
    service.served(user_id, time.perf_counter() - begin, by_model=by_model)
    return Response(_with_id(body), media_type=JSON)


def _with_id(body: bytes) -> bytes:
    """Add an id to a list, which costs less than making any other answer of the cached bytes."""
    if body.startswith(b'{"list_id"'):  # of an interleaved list
        return body
    return b'{"list_id":"%b-%x",%b' % (_PROCESS, next(_numbers), body[1:])


async def recommend(
    service: RunningService,
    key: Reader,
    user_id: UserId,
    k: K = None,
    exclude: Annotated[list[str], Query(description=_EXCLUDE, examples=[["alien"]])] = [],  # noqa: B006
    only: Annotated[list[str] | None, Query(description=_ONLY, examples=[["alien", "heat"]])] = None,
    where: Where = "",
    explain: Annotated[bool, Query(description=_EXPLAIN)] = False,
) -> Response:
    """Recommend the best items to a user, without those the user has had; unknown users get popular items.

    With `exclude`, `only`, `filter` and `explain` lists show what the user has had, so they need the scope `history`.
    """
    ask = Ask(_checked_k(service, k), tuple(exclude), only, where, explain)
    _check_scope(key, ask)
    return await _list(service, user_id, ask)


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
    openapi_extra=json_body_of(Question),
    response_model=ManyRecommendations,
    responses=problems(*_ERRORS, "body_too_large"),
)
async def recommend_many(request: Request, service: RunningService, key: Reader) -> Response:
    """Recommend to several users or anonymous sessions at once.

    For users, `exclude`, `only`, `filter` and `explain` need the scope `history`.
    """
    content = await service.in_thread(service.batch_threads, _many, service, key, await request.body())
    return Response(content, media_type=JSON)


def _many(service: Service, key: CachedKey, body: bytes) -> bytes:
    """Answer a batch, from its body to the bytes of the answer: all of it takes too long for the event loop."""
    question = parse_body(Question, body)
    k, limit = _checked_k(service, question.k), service.limits.max_users
    if len(question.users or question.histories or []) > limit:
        raise ApiError("invalid", f"At most {limit} lists may be requested at once.")
    ask = Ask(k, tuple(question.exclude), question.only, question.filter, question.explain)
    current = service.serving.current
    if question.users is not None:
        _check_scope(key, ask)
        if question.only is None:
            service.serving.make_lists(question.users, k)
    lists = [_with_id(service.serving.json(user, ask)) for user in question.users or ()]
    for items in question.histories or ():
        answer = current.recommend_session(items, ask)
        lists.append(_with_id(with_user(None, written(answer))))
    n_popular = sum(_POPULARITY in each for each in lists)
    service.metrics.lists("popularity").inc(n_popular)
    service.metrics.lists("model").inc(len(lists) - n_popular)
    return b'{"model":%b,"answers":[%b]}' % (json.dumps(current.id).encode(), b",".join(lists))


@router.get(
    "/v1/items/popular", operation_id="list_popular_items", response_model=Recommendations, responses=problems(*_ERRORS)
)
async def popular_items(service: RunningService, _: Reader, k: K = None, where: Where = "") -> Response:
    """List the items with the most recent events."""
    return await _list_of_items(service, service.serving.current.popular, _checked_k(service, k), where)


@router.get(
    "/v1/items/{item_id:path}/similar",
    operation_id="list_similar_items",
    response_model=Recommendations,
    responses=problems(*_ERRORS, "unknown_id"),
)
async def similar_items(
    service: RunningService, _: Reader, item_id: ItemId, k: K = None, where: Where = ""
) -> Response:
    """List the items most similar to one, by the model's vectors or else by the people who had both.

    Without vectors an item counts if at least five people had both; otherwise it would tell what they had.
    """
    return await _list_of_items(service, service.serving.current.similar, item_id, _checked_k(service, k), where)


async def _list_of_items(service: Service, make: Callable[..., Answer], *arguments: object) -> Response:
    """Answer with a list that is for no user, which is not counted: popular items are no fallback."""
    answer = await service.in_thread(service.list_threads, make, *arguments)
    return Response(_with_id(with_user(None, written(answer))), media_type=JSON)


def _check_scope(key: CachedKey, ask: Ask) -> None:
    if key.scope not in HISTORY_SCOPES and ask != Ask(ask.k):
        sentence = "exclude, only, filter and explain show what the user has had; they need the scope 'history'."
        raise ApiError("missing_scope", sentence)


def _checked_k(service: Service, k: int | None) -> int:
    max_k = service.limits.max_k
    if k is None:
        return min(_DEFAULT_K, max_k)
    if k > max_k:
        raise ApiError("invalid", f"k must be at most {max_k}.")
    return k
