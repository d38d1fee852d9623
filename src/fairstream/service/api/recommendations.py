"""GET /v1/users/{user_id}/recommendations and POST /v1/recommendations: what goes out."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairstream.service.api import schemas
from fairstream.service.api.reading import json_response, parsed, whole_number
from fairstream.service.api.refusals import Refused, refusals
from fairstream.service.api.state import Service
from fairstream.service.ids import MAX_LENGTH, check_ids, ids_from_values
from fairstream.service.incoming import parse_json
from fairstream.service.rows import Rows
from fairstream.service.serving import NotReadyError, ServingModel

_RETRY_SECONDS = 5


def add_routes(routes: APIRouter, service: Service) -> None:
    """The routes for keys of scope read that ask for lists."""
    limits = service.workspace.config.limits
    default_k, max_k, admit = min(20, limits.max_k), limits.max_k, service.keys.admit
    k_in_query = schemas.parameter("k", "query", schemas.k_schema(max_k), "How many items.")

    @routes.get(
        "/v1/users/{user_id:path}/recommendations",
        openapi_extra={"parameters": [schemas.USER_ID, k_in_query]},
        # 404: an id with a line break in it, which none has, does not look like a path.
        responses={200: {"model": schemas.Recommendations}, **refusals(404, 422)},
        response_class=Response,
        tags=["recommend"],
    )
    async def recommend(request: Request) -> Response:
        """A user's best items, less what it has had; users who are not known get what is popular."""
        scope = request.scope
        await admit(scope, "read")
        model = _ready(service)
        query = scope["query_string"]
        k = whole_number(_k_of(query, default_k), "k", 1, max_k) if query else default_k
        user_id: str = scope["path_params"]["user_id"]
        if not 0 < len(user_id) <= MAX_LENGTH:
            raise Refused(422, f"user_id must have between 1 and {MAX_LENGTH} characters")
        if model.is_cached(user_id):
            return json_response(model.json(user_id, k))
        return json_response(await asyncio.to_thread(model.json, user_id, k))

    @routes.post(
        "/v1/recommendations",
        openapi_extra={"requestBody": schemas.batch(limits.max_users, max_k)},
        responses={200: {"model": schemas.ManyRecommendations}, **refusals(413, 415, 422)},
        response_class=Response,
        tags=["recommend"],
    )
    async def recommend_to_many(request: Request) -> Response:
        """The same for several users at once, all from one model."""
        await admit(request.scope, "read")
        asked = await parsed(request, service.bodies, {schemas.JSON: lambda body: parse_json(body, "the body")})
        users, k = _asked(asked, limits.max_users, default_k, max_k)
        return json_response(await asyncio.to_thread(_answers, _ready(service), users, k))


def _k_of(query: bytes, default_k: int) -> str:
    if query.startswith(b"k=") and (digits := query[2:]).isdigit():
        return digits.decode()
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)).get("k", str(default_k))


def _ready(service: Service) -> ServingModel:
    try:
        return service.serving.current
    except NotReadyError as error:
        raise Refused(503, str(error), retry_after=_RETRY_SECONDS) from None


def _asked(found: Any, max_users: int, default_k: int, max_k: int) -> tuple[list[str], int]:
    if not isinstance(found, dict) or not {"users"} <= found.keys() <= {"users", "k"}:
        raise Refused(422, 'the body must be {"users": [...], "k": ...} and nothing else')
    users = found["users"]
    if not isinstance(users, list) or len(users) > max_users:
        raise Refused(422, f"users must be a list of at most {max_users} ids")
    rows = Rows("user")
    ids = ids_from_values(users, "user_id", rows)
    check_ids(ids, "user_id", rows)
    k = found.get("k", default_k)
    return ids.to_pylist(), whole_number("" if isinstance(k, str) else k, "k", 1, max_k)


def _answers(model: ServingModel, users: list[str], k: int) -> bytes:
    answers = b",".join(model.json(user, k) for user in users)
    return b'{"model":%b,"answers":[%b]}' % (json.dumps(model.id).encode(), answers)
