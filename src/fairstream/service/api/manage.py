"""Updates, periods, models, people and the audit record: what has happened, and what an administrator may do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import Engine, select

from fairstream.errors import WorkspaceError
from fairstream.service import registry, schema, updates
from fairstream.service.api.auth import Admin, Reader
from fairstream.service.api.errors import ApiError, problems
from fairstream.service.api.jobs import UNKNOWN, parsed_output
from fairstream.service.api.schemas import Limit, Page, UserId
from fairstream.service.api.service import RunningService
from fairstream.service.audit import entries
from fairstream.service.database import DatabaseUnavailableError
from fairstream.service.forgetting import request_forget
from fairstream.service.periods import closed_periods
from fairstream.service.records import Model, Period, Time, Update

router = APIRouter(tags=["manage"])
Before = Annotated[str | None, Query(description="`next` of the page before.")]


class ModelRow(BaseModel):
    """A model in a list; ask for it by its id to see its checks and configuration."""

    id: str
    t: int
    parent: str | None
    state: str
    in_service: bool
    created: Time
    training_seconds: float
    reason: str | None
    """Why it was promoted or rejected."""


class ModelInService(BaseModel):
    """The model that answers from now on."""

    model: str


class AuditEntry(BaseModel):
    """A line of the audit record."""

    seq: int
    time: Time
    kind: str
    body: Any
    previous: str
    hash: str


class ForgetRequest(BaseModel):
    """A person is being forgotten."""

    n_events: int
    """Events that were removed; the attribute and models follow."""


class FullModel(Model):
    """A model, and what the gate decided."""

    in_service: bool


class FullPeriod(Period):
    """A closed period, and what the controller of the disparity did when it was learned."""

    control: dict[str, Any] | None


@contextmanager
def _as(status: int) -> Iterator[None]:
    """Give a refusal of the workspace this status; a database that is away keeps its own."""
    try:
        yield
    except DatabaseUnavailableError:
        raise
    except WorkspaceError as error:
        raise ApiError(status, str(error)) from None


@router.post("/v1/updates", operation_id="request_update", status_code=202, responses=problems(409))
async def request_update(service: RunningService, key: Admin, response: Response) -> Update:
    """Close the open period: start an update, whose state `GET /v1/updates/ID` tells."""
    with _as(409):
        update = await service.updates.request(key.name)
    response.headers["Location"] = f"/v1/updates/{update.id}"
    return update


@router.get("/v1/updates/{update_id}", operation_id="show_update", responses=problems(404))
def show_update(service: RunningService, _: Reader, update_id: str) -> Update:
    """An update: queued, running, promoted, rejected, skipped or failed, and why."""
    with _as(404):
        return updates.get(service.workspace.engine, update_id)


@router.get("/v1/updates", operation_id="list_updates", responses=problems(404, 422))
def list_updates(service: RunningService, _: Reader, before: Before = None, limit: Limit = 50) -> Page[Update]:
    """Updates, the newest first."""
    with _as(404):
        return Page[Update].of(updates.listed(service.workspace.engine, before, limit + 1), limit, "id")


@router.get("/v1/periods", operation_id="list_periods", responses=problems(422))
def list_periods(
    service: RunningService,
    _: Reader,
    after: Annotated[int, Query(ge=-1, le=2**31 - 1, description="`next` of the page before.")] = -1,
    limit: Limit = 100,
) -> Page[FullPeriod]:
    """Closed periods, the oldest first, and how the model in service did on each."""
    return Page[FullPeriod].of(full_periods(service.workspace.engine, after, limit + 1), limit, "t")


def full_periods(engine: Engine, after: int = -1, limit: int | None = None) -> list[FullPeriod]:
    """Closed periods after one, with what the controller did."""
    periods, rows = closed_periods(engine, after=after, limit=limit), schema.models.c
    query = select(rows.t, rows.about).where(rows.t.in_([period.t for period in periods]))
    with engine.connect() as connection:
        control = {t: about.get("control") for t, about in connection.execute(query)}
    return [FullPeriod(**vars(period), control=control.get(period.t)) for period in periods]


@router.get("/v1/models", operation_id="list_models", responses=problems(404, 422))
def list_models(service: RunningService, _: Reader, before: Before = None, limit: Limit = 50) -> Page[ModelRow]:
    """Models, the newest first."""
    engine = service.workspace.engine
    current = registry.in_service(engine)
    with _as(404):
        models = registry.models(engine, before, limit + 1)
    rows = [
        ModelRow(
            **{**vars(model), "reason": model.decision.get("reason")},
            in_service=current is not None and model.id == current.model,
        )
        for model in models
    ]
    return Page[ModelRow].of(rows, limit, "id")


@router.get("/v1/models/{model_id}", operation_id="show_model", responses=problems(404))
def show_model(service: RunningService, _: Reader, model_id: str) -> FullModel:
    """One model: the gate's checks, its configuration, versions and sizes."""
    with _as(404):
        model = registry.model(service.workspace.engine, model_id)
    current = registry.in_service(service.workspace.engine)
    return FullModel(**vars(model), in_service=current is not None and current.model == model_id)


@router.post("/v1/models/{model_id}/promote", operation_id="promote_model", responses=problems(404, 409))
def promote(service: RunningService, key: Admin, model_id: str) -> ModelInService:
    """Put a model into service, whatever the gate decided."""
    with _as(404):
        registry.model(service.workspace.engine, model_id)
    with _as(409):
        registry.promote(service.workspace, model_id, by=key.name)
    return ModelInService(model=model_id)


@router.post("/v1/rollback", operation_id="rollback", responses=problems(409))
def rollback(service: RunningService, key: Admin) -> ModelInService:
    """Put the parent of the model in service back: the one that it was made from."""
    with _as(409):
        return ModelInService(model=registry.rollback(service.workspace, by=key.name))


@router.get("/v1/audit", operation_id="list_audit", responses=problems(422))
def list_audit(
    service: RunningService,
    _: Admin,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="`next` of the page before.")] = 0,
    limit: Limit = 1000,
) -> Page[AuditEntry]:
    """The audit record, the oldest entry first."""
    page = [
        AuditEntry(**{**vars(entry), "body": json.loads(entry.body)})
        for entry in entries(service.workspace.engine, after, limit + 1)
    ]
    return Page[AuditEntry].of(page, limit, "seq")


def _as_ids(user_id: str) -> bytes:
    """What `--ids -` reads: in the arguments of a process everybody on the machine could see whom it is about."""
    return json.dumps([user_id]).encode()


@router.delete("/v1/users/{user_id:path}", operation_id="forget_user", status_code=202, responses=problems(507))
async def forget_user(service: RunningService, key: Admin, user_id: UserId) -> ForgetRequest:
    """Forget a person: events and lists at once, the attribute and what models have learned soon after.

    An id without events is accepted, too: the attribute and the models are searched when the request is completed.
    """
    # Known or not: only the process that completes the request opens the attributes and every model.
    request = await asyncio.to_thread(request_forget, service.workspace, [user_id], by=key.name, known=[user_id])
    service.serving.forget([user_id])
    service.forgetter.wake()
    return ForgetRequest(n_events=request.n_events)


@router.get(
    "/v1/users/{user_id:path}/data",
    operation_id="export_user",
    response_class=Response,
    responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}, **problems(404)},
)
async def export_user(service: RunningService, _: Admin, user_id: UserId) -> Response:
    """All that is stored about a person: events, attribute, and which models know of them."""
    ended = await service.commands.run("export", "--ids", "-", stdin=_as_ids(user_id))
    if ended.code == UNKNOWN:
        raise ApiError(404, "This user is unknown: no event, no attribute and no model is theirs.")
    return JSONResponse(parsed_output(ended))
