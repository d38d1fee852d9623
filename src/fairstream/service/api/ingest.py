"""POST /v1/events and PUT /v1/users."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
from fastapi import APIRouter, Request
from pydantic import Field

from fairstream.service.api.auth import Ingester, UserWriter
from fairstream.service.api.errors import ApiError, problems
from fairstream.service.api.schemas import JSON, JSON_LINES, Event, EventBatch, Reply, UserGroup, body_of
from fairstream.service.api.service import RunningService
from fairstream.service.incoming import Rows, batch_from_json, parse_json, parse_json_lines, people_from_json
from fairstream.service.people import UsersReceipt
from fairstream.service.settings import EventKinds, Limits
from fairstream.service.workspace import Workspace

_QUICK_BYTES = 1 << 14  # threads parse larger bodies, so that they delay no other request
BODY = ("body_too_large", "wrong_type", "overloaded", "disk_full")
router = APIRouter(tags=["ingest"])


def objects_in(body: bytes, kind: str, noun: str) -> Any:
    """Return the content of a body: any JSON, or a list of the objects of JSON Lines."""
    return parse_json(body, "the body") if kind == JSON else parse_json_lines(body, Rows(noun))


def _events_in(body: bytes, kind: str, limits: Limits, kinds: EventKinds) -> pa.Table:
    """Parse one event, a list of events, or {"events": […]}."""
    content = objects_in(body, kind, "event")
    if isinstance(content, dict):
        content = content["events"] if content.keys() == {"events"} else [content]
    return batch_from_json(content, limits, kinds)


class EventsAnswer(Reply):
    """The events are on disk."""

    accepted: int = Field(examples=[3])
    """All events of the request: those stored now or before, and those of people who were forgotten."""
    stored: int | None = None
    """Stored now. For admin keys alone."""
    repeated: int | None = None
    """Stored before. For admin keys alone."""
    forgotten: int | None = None
    """Of people who were forgotten and have done nothing since: not stored. For admin keys alone."""


class UsersAnswer(Reply):
    """The groups are on disk."""

    accepted: int = Field(examples=[3])
    """All users of the request, the forgotten ones included."""
    stored: int | None = None
    """Stored now. For admin keys alone."""
    forgotten: int | None = None
    """Of people who were forgotten and have done nothing since: not stored. For admin keys alone."""


@router.post(
    "/v1/events",
    operation_id="ingest_events",
    openapi_extra=body_of(Event, Event, EventBatch),
    response_model_exclude_none=True,
    responses=problems(*BODY, "too_many_open_events"),
)
async def ingest_events(request: Request, service: RunningService, key: Ingester) -> EventsAnswer:
    """Store events, all of them or none; it answers when they are on disk."""
    kind, body = content_type(request), await request.body()
    arguments = body, kind, service.limits, service.workspace.config.events
    is_quick = len(body) <= _QUICK_BYTES
    batch = _events_in(*arguments) if is_quick else await asyncio.to_thread(_events_in, *arguments)
    receipt = await service.writer.store(batch, key.name if key.scope == "ingest" else None)
    for outcome, n in vars(receipt).items():
        service.metrics.events(outcome).inc(n)
    answer = EventsAnswer(accepted=sum(vars(receipt).values()))
    if key.scope == "admin":  # whether an event exists, or somebody was forgotten, is for nobody else to know
        answer.stored, answer.repeated, answer.forgotten = receipt.accepted, receipt.repeated, receipt.forgotten
    return answer


@router.put(
    "/v1/users",
    operation_id="put_users",
    response_model_exclude_none=True,
    openapi_extra=body_of(UserGroup),
    responses=problems(*BODY),
)
async def put_users(request: Request, service: RunningService, key: UserWriter) -> UsersAnswer:
    """Set the group of users."""
    kind, body = content_type(request), await request.body()
    receipt = await asyncio.to_thread(_put_users, service.workspace, body, kind)
    details = vars(receipt) if key.scope == "admin" else {}
    return UsersAnswer(accepted=receipt.stored + receipt.forgotten, **details)


def _put_users(workspace: Workspace, body: bytes, kind: str) -> UsersReceipt:
    users = people_from_json(objects_in(body, kind, "user"), value="group", allowed=workspace.config.groups)
    with workspace.people() as people:
        return people.put(users)


def content_type(request: Request) -> str:
    """Return the type of a body: JSON or JSON Lines, not compressed."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, JSON_LINES):
        raise ApiError("wrong_type", f"The Content-Type must be {JSON} or {JSON_LINES}.")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise ApiError("wrong_type", "The body must not be compressed; send it without Content-Encoding.")
    return kind
