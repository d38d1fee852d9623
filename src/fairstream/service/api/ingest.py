"""POST /v1/events, PUT /v1/users, POST /v1/impressions and GET /v1/impressions/report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from fastapi import APIRouter, Query, Request
from pydantic import Field, StrictFloat

from fairstream.service.api.auth import Ingester, Reader, UserWriter
from fairstream.service.api.errors import ApiError, problems
from fairstream.service.api.schemas import (
    JSON,
    JSON_LINES,
    PLAIN,
    Body,
    Event,
    EventBatch,
    Id,
    Reply,
    Text,
    UserGroup,
    body_of,
    json_body_of,
    parse_body,
)
from fairstream.service.api.service import RunningService, Service
from fairstream.service.database import now
from fairstream.service.impressions import Report, Shown
from fairstream.service.incoming import (
    Rows,
    batch_from_json,
    micros_of,
    parse_json,
    parse_json_lines,
    people_from_json,
)
from fairstream.service.people import UsersReceipt
from fairstream.service.settings import EventKinds, Limits
from fairstream.service.workspace import Workspace

T = TypeVar("T")
_QUICK_BYTES = 1 << 14
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


class Impression(Body):
    """A list that somebody saw."""

    user_id: Id = Field(examples=["ann"])
    """Who saw it."""
    items: list[Id] = Field(min_length=1, max_length=1000, examples=[["boot-42", "sock-7"]])
    """The items that were shown, in their order."""
    time: StrictFloat | str | None = Field(None, examples=["2026-01-31T12:00:00Z"])
    """When it was shown: seconds since 1970 or ISO 8601; now if it is missing."""
    list_id: str | None = Field(None, max_length=8192, pattern=PLAIN, examples=["m00001-5f2a"])
    """`list_id` of the response that held the list; a list that is sent again under its id is stored once."""
    placement: Text | None = Field(None, examples=["home"])
    """Where it was shown."""


class Impressions(Body):
    """Lists that people saw."""

    impressions: list[Impression] = Field(max_length=10_000)
    """The lists; all of them are stored or none."""


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


class ImpressionsAnswer(Reply):
    """The lists are on disk."""

    accepted: int = Field(examples=[3])
    """All lists of the request: those stored now or before, and those of people who were forgotten."""
    stored: int | None = None
    """Stored now. For admin keys alone."""
    repeated: int | None = None
    """Stored before. For admin keys alone."""
    forgotten: int | None = None
    """Of people who were forgotten: not stored. For admin keys alone."""


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
    batch = await _parsed(_events_in, body, kind, service.limits, service.workspace.config.events)
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
    return workspace.people.put(users)


@router.post(
    "/v1/impressions",
    operation_id="ingest_impressions",
    openapi_extra=json_body_of(Impressions),
    response_model_exclude_none=True,
    responses=problems("body_too_large", "overloaded", "disk_full"),
)
async def ingest_impressions(request: Request, service: RunningService, key: Ingester) -> ImpressionsAnswer:
    """Store lists that people saw; it answers when they are on disk."""
    receipt = vars(await service.impressions.ask(await _parsed(_lists_in, await request.body(), service)))
    details = {**receipt, "stored": receipt["accepted"]} if key.scope == "admin" else {}
    return ImpressionsAnswer(**{**details, "accepted": sum(receipt.values())})


def _lists_in(body: bytes, service: Service) -> list[Shown]:
    moment, latest = now(), service.limits.max_future_seconds
    lists, rows = [], Rows("impression")
    for row, each in enumerate(parse_body(Impressions, body).impressions):
        time = moment if each.time is None else micros_of(each.time, row, rows)
        if time > moment + latest * 1_000_000:
            raise rows.error(row, f"time must be at most {latest} seconds ahead of the clock")
        if len(set(each.items)) < len(each.items):
            raise rows.error(row, "items must be different")
        shown = service.stamp(each.user_id, each.items, time, each.list_id)
        lists.append(shown._replace(placement=each.placement))
    return lists


@router.get("/v1/impressions/report", operation_id="report_impressions", responses=problems())
def report(
    service: RunningService,
    _: Reader,
    hours: Annotated[int, Query(ge=1, le=24 * 366, description="How far back.")] = 24,
) -> Report:
    """Report what was shown in the last hours, and the events that followed."""
    return Report.of(service.workspace.engine, hours)


async def _parsed(parse: Callable[..., T], body: bytes, *arguments: object) -> T:
    """Parse a small body here, and a large one in a thread, so that it delays no other request."""
    if len(body) <= _QUICK_BYTES:
        return parse(body, *arguments)
    return await asyncio.to_thread(parse, body, *arguments)


def content_type(request: Request) -> str:
    """Return the type of a body: JSON or JSON Lines, not compressed."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, JSON_LINES):
        raise ApiError("wrong_type", f"The Content-Type must be {JSON} or {JSON_LINES}.")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise ApiError("wrong_type", "The body must not be compressed; send it without Content-Encoding.")
    return kind
