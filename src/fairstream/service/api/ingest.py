"""POST /v1/events, PUT /v1/users and /v1/items: what comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

import pyarrow as pa
import pyarrow.ipc
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict

from fairstream.service import items
from fairstream.service.api.auth import Ingester, Reader, UserWriter
from fairstream.service.api.errors import ApiError, problems
from fairstream.service.api.jobs import parsed_output
from fairstream.service.api.schemas import ARROW, EVENTS_BODY, JSON, JSON_LINES, USERS_BODY, Limit, Page, Text
from fairstream.service.api.service import RunningService
from fairstream.service.fields import Rows
from fairstream.service.incoming import (
    Batch,
    batch_from_ipc,
    batch_from_json,
    batch_from_json_lines,
    parse_json,
    parse_json_lines,
    people_from_arrow,
    people_from_json,
    read_ipc,
)
from fairstream.service.settings import Limits

_QUICK_BYTES = 1 << 14
"""Bodies up to this are parsed at once; larger ones in a thread, where they delay no other request."""
router = APIRouter(tags=["ingest"])


class Receipt(BaseModel):
    """What became of the events of a request."""

    accepted: int
    """Stored now."""
    repeated: int
    """Known already, by their ids."""
    forgotten: int
    """Of people who were forgotten; not stored."""


class UsersReceipt(BaseModel):
    """What became of the users of a request."""

    stored: int
    forgotten: int
    """Users who were forgotten and have no events since; not stored."""


class Availability(BaseModel):
    """Whether an item may be recommended."""

    model_config = ConfigDict(extra="forbid", strict=True)

    available: bool


def _from_json(body: bytes, limits: Limits) -> Batch:
    """One event, a list of them, or {"events": […]}."""
    content = parse_json(body, "the body")
    if isinstance(content, dict):
        content = content["events"] if content.keys() == {"events"} else [content]
    return batch_from_json(content, limits)


_PARSERS: dict[str, Callable[[bytes, Limits], Batch]] = {
    JSON: _from_json,
    JSON_LINES: batch_from_json_lines,
    ARROW: batch_from_ipc,
}


@router.post(
    "/v1/events", operation_id="ingest_events", openapi_extra=EVENTS_BODY, responses=problems(408, 413, 415, 422, 507)
)
async def ingest_events(request: Request, service: RunningService, _: Ingester) -> Receipt:
    """Store events, all of them or none; they are on disk when the answer comes."""
    parse = _PARSERS[_content_type(request)]
    body = await request.body()
    if len(body) <= _QUICK_BYTES:
        batch = parse(body, service.limits)
    else:
        batch = await asyncio.to_thread(parse, body, service.limits)
    receipt = await asyncio.wrap_future(service.writer.store(batch))
    for outcome, n in receipt._asdict().items():
        service.metrics.events.labels(outcome).inc(n)
    return Receipt(**receipt._asdict())


@router.put("/v1/users", operation_id="put_users", openapi_extra=USERS_BODY, responses=problems(408, 413, 415, 422))
async def put_users(request: Request, service: RunningService, _: UserWriter) -> UsersReceipt:
    """Set the group of users; it is written by a process of its own, and nothing gives it out again."""
    parse = _USER_PARSERS[_content_type(request)]
    body = await request.body()
    users = await asyncio.to_thread(_checked_users, parse, body, service.workspace.config.groups)
    ended = await service.commands.run("ingest", "--users", "-", "--group", "value", "--json", "-", stdin=users)
    return UsersReceipt(**parsed_output(ended)["users"])


_USER_PARSERS: dict[str, Callable[..., pa.Table]] = {
    JSON: lambda body, **options: people_from_json(parse_json(body, "the body"), **options),
    JSON_LINES: lambda body, **options: people_from_json(parse_json_lines(body, Rows("user")), **options),
    ARROW: lambda body, **options: people_from_arrow(read_ipc(body), **options),
}


def _checked_users(parse: Callable[..., pa.Table], body: bytes, groups: Sequence[str] | None) -> bytes:
    """The users of a body, as an Arrow IPC stream; bad input is refused before a process is started for it."""
    users, stream = parse(body, value="group", allowed=groups), pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, users.schema) as writer:
        writer.write_table(users)
    return stream.getvalue().to_pybytes()


def _content_type(request: Request) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _PARSERS:
        raise ApiError(415, f"The Content-Type must be {' or '.join(_PARSERS)}.")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise ApiError(415, "The body must not be compressed; send it without Content-Encoding.")
    return kind


@router.put("/v1/items/{item_id:path}", operation_id="put_item", responses=problems(400, 404, 413, 422))
async def put_item(service: RunningService, key: Ingester, item_id: Text, availability: Availability) -> items.Item:
    """Withdraw an item from every list, or bring it back."""
    return await service.set_available(item_id, availability.available, by=key.name)


@router.get("/v1/items", operation_id="list_items", responses=problems(422))
def list_items(
    service: RunningService,
    _: Reader,
    available: Annotated[bool | None, Query(description="Only those that are, or are not, available.")] = None,
    after: Annotated[str, Query(description="The last item of the page before.")] = "",
    limit: Limit = 100,
) -> Page[items.Item]:
    """Items whose availability was ever set; all others are available."""
    return Page[items.Item].of(items.listed(service.workspace.engine, available, after, limit + 1), limit, "item_id")
