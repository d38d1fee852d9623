"""POST /v1/events and PUT /v1/users: what comes in."""

from __future__ import annotations

import asyncio

import pyarrow as pa
from fastapi import APIRouter, Request
from starlette.responses import Response

from fairstream.service.api.reading import json_response, parsed
from fairstream.service.api.refusals import refusals
from fairstream.service.api.schemas import ARROW, EVENTS, JSON, JSON_LINES, PEOPLE, Taken, TakenPeople
from fairstream.service.api.state import Service
from fairstream.service.incoming import (
    Batch,
    batch_from_ipc,
    batch_from_json,
    batch_from_json_lines,
    parse_json,
    parse_json_lines,
)
from fairstream.service.ipc import read_ipc
from fairstream.service.people import people_from_arrow, people_from_json, put_people
from fairstream.service.rows import Rows
from fairstream.service.settings import Limits

_VALUE = "group"
"""What the field is called that says to which group a user belongs, whatever attribute that is."""


def add_routes(routes: APIRouter, service: Service) -> None:
    """The routes for keys of scope ingest."""
    limits = service.workspace.config.limits
    of_events = {
        JSON: lambda body: _batch_of_json(body, limits),
        JSON_LINES: lambda body: batch_from_json_lines(body, limits),
        ARROW: lambda body: batch_from_ipc(body, limits),
    }
    of_people = {
        JSON: lambda body: people_from_json(parse_json(body, "the body"), value=_VALUE),
        JSON_LINES: lambda body: people_from_json(parse_json_lines(body, Rows("user")), value=_VALUE),
        ARROW: lambda body: people_from_arrow(read_ipc(body), value=_VALUE),
    }

    @routes.post(
        "/v1/events",
        openapi_extra={"requestBody": EVENTS},
        responses={200: {"model": Taken}, **refusals(413, 415, 422)},
        response_class=Response,
        tags=["ingest"],
    )
    async def take_events(request: Request) -> Response:
        """Store events, all of them or none; they are on disk when the answer comes."""
        await service.keys.admit(request.scope, "ingest")
        batch: Batch = await parsed(request, service.bodies, of_events)
        receipt = await asyncio.wrap_future(service.writer.store(batch))
        for outcome, n in receipt._asdict().items():
            service.metrics.events[outcome] += n
        return json_response(
            f'{{"accepted":{receipt.accepted},"repeated":{receipt.repeated},"forgotten":{receipt.forgotten}}}'
        )

    @routes.put(
        "/v1/users",
        openapi_extra={"requestBody": PEOPLE},
        responses={200: {"model": TakenPeople}, **refusals(413, 415, 422)},
        response_class=Response,
        tags=["ingest"],
    )
    async def take_people(request: Request) -> Response:
        """Tell which group users belong to; nothing ever gives this out again."""
        await service.keys.admit(request.scope, "ingest")
        people: pa.Table = await parsed(request, service.bodies, of_people)
        stored = await asyncio.to_thread(put_people, service.workspace.engine, people)
        return json_response(f'{{"stored":{stored}}}')


def _batch_of_json(body: bytes, limits: Limits) -> Batch:
    """One event, a list of them, or {"events": […]}."""
    found = parse_json(body, "the body")
    if isinstance(found, dict):
        found = found["events"] if found.keys() == {"events"} else [found]
    return batch_from_json(found, limits)
