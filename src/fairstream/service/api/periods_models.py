"""Periods, models and the record: what has happened, and what an administrator may have happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import dropwhile, islice
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import Engine, select
from starlette.responses import Response

from fairstream.errors import WorkspaceError
from fairstream.service import registry
from fairstream.service.api import schemas
from fairstream.service.api.reading import json_response, whole_number
from fairstream.service.api.refusals import Refused, refusals
from fairstream.service.api.state import Service
from fairstream.service.audit import entries
from fairstream.service.json_type import canonical
from fairstream.service.schema import models, periods

_ENTRIES_AT_ONCE = 1000
_MODEL_ID = schemas.parameter("model_id", "path", {"type": "string", "minLength": 1}, "A model.")


def add_routes(routes: APIRouter, service: Service) -> None:
    """The routes that tell (scope read) and those that act (scope admin)."""
    admit, workspace = service.keys.admit, service.workspace
    engine = workspace.engine

    @routes.get(
        "/v1/periods",
        responses={200: {"model": list[schemas.Period]}, **refusals()},
        response_class=Response,
        tags=["manage"],
    )
    async def list_periods(request: Request) -> Response:
        """Every closed period, oldest first, and how the model in service did on it."""
        await admit(request.scope, "read")
        return json_response(canonical(await asyncio.to_thread(_periods, engine)))

    @routes.post(
        "/v1/periods",
        status_code=202,
        responses={202: {"model": schemas.Started}, **refusals(409)},
        response_class=Response,
        tags=["manage"],
    )
    async def close_period(request: Request) -> Response:
        """Close the open period: start an update."""
        name = await admit(request.scope, "admin")
        if not await service.updates.start(name):
            raise Refused(409, "an update is running already; wait until it has ended")
        return json_response('{"started":true}', 202)

    @routes.get(
        "/v1/models",
        responses={200: {"model": list[schemas.Model]}, **refusals()},
        response_class=Response,
        tags=["manage"],
    )
    async def list_models(request: Request) -> Response:
        """Every model there ever was, newest first."""
        await admit(request.scope, "read")
        return json_response(canonical(await asyncio.to_thread(_models, engine)))

    @routes.get(
        "/v1/models/{model_id}",
        openapi_extra={"parameters": [_MODEL_ID]},
        responses={200: {"model": schemas.Model}, **refusals(404)},
        response_class=Response,
        tags=["manage"],
    )
    async def show_model(request: Request) -> Response:
        """One model, and why it was promoted or held."""
        await admit(request.scope, "read")
        return json_response(canonical(await _model(engine, request)))

    @routes.post(
        "/v1/models/{model_id}/promote",
        openapi_extra={"parameters": [_MODEL_ID]},
        responses={200: {"model": schemas.InService}, **refusals(404, 409)},
        response_class=Response,
        tags=["manage"],
    )
    async def promote(request: Request) -> Response:
        """Put a model into service, whatever the gate said."""
        name = await admit(request.scope, "admin")
        model = (await _model(engine, request))["id"]
        with _conflicts():
            await asyncio.to_thread(registry.promote, workspace, model, by=name)
        return json_response(canonical({"model": model}))

    @routes.post(
        "/v1/rollback",
        responses={200: {"model": schemas.InService}, **refusals(409)},
        response_class=Response,
        tags=["manage"],
    )
    async def rollback(request: Request) -> Response:
        """Put the model back that was in service before."""
        name = await admit(request.scope, "admin")
        with _conflicts():
            model = await asyncio.to_thread(registry.rollback, workspace, by=name)
        return json_response(canonical({"model": model}))

    @routes.get(
        "/v1/audit",
        openapi_extra={
            "parameters": [
                schemas.parameter(
                    "after", "query", {"type": "integer", "minimum": 0, "default": 0}, "Only later entries."
                )
            ]
        },
        responses={200: {"model": list[schemas.AuditEntry]}, **refusals(422)},
        response_class=Response,
        tags=["manage"],
    )
    async def audit(request: Request) -> Response:
        """The record, oldest first, a thousand entries at a time."""
        await admit(request.scope, "admin")
        after = whole_number(request.query_params.get("after", "0"), "after", 0, 2**63)
        return json_response(canonical(await asyncio.to_thread(_entries, engine, after)))


@contextmanager
def _conflicts() -> Iterator[None]:
    """An update is running, or the model cannot answer: what stands in the way is said."""
    try:
        yield
    except WorkspaceError as error:
        raise Refused(409, str(error)) from None


def _iso(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()


def _periods(engine: Engine) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        found = [dict(row._mapping) for row in connection.execute(select(periods).order_by(periods.c.t))]
        rows = connection.execute(select(models.c.t, models.c.about)).mappings()
        about = {row["t"]: row["about"] for row in rows}  # a row's own `t` is something else
    told = schemas.Period.model_fields.keys()
    return [
        {name: value for name, value in row.items() if name in told}
        | {"closed": _iso(row["closed"]), "control": about.get(row["t"], {}).get("control")}
        for row in found
    ]


def _models(engine: Engine) -> list[dict[str, Any]]:
    current = registry.in_service(engine)
    return [
        row.model_dump(mode="json", exclude={"folder"})
        | {
            "in_service": current is not None and row.id == current.model,
        }
        for row in registry.models(engine)
    ]


async def _model(engine: Engine, request: Request) -> dict[str, Any]:
    wanted = request.path_params["model_id"]
    for model in await asyncio.to_thread(_models, engine):
        if model["id"] == wanted:
            return model
    raise Refused(404, "there is no model of this id; GET /v1/models tells which there are")


def _entries(engine: Engine, after: int) -> list[dict[str, Any]]:
    later = dropwhile(lambda entry: entry.seq <= after, entries(engine))
    return [
        vars(entry) | {"time": _iso(entry.time), "body": json.loads(entry.body)}
        for entry in islice(later, _ENTRIES_AT_ONCE)
    ]
