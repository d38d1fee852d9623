"""Updates, periods, models, experiments, people and the audit record."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import Field, Json
from sqlalchemy import Engine, select

from fairstream.service import experiments, registry, schema, updates
from fairstream.service.api.auth import Admin, Reader
from fairstream.service.api.errors import ApiError, problems
from fairstream.service.api.schemas import Cursor, Limit, ModelId, Number, Page, Reply, RequestId, UpdateId, UserId
from fairstream.service.api.service import RunningService, Service
from fairstream.service.audit import entries
from fairstream.service.budget import PrivacyStatus
from fairstream.service.event_store import closed_periods
from fairstream.service.experiments import Experiment, Options
from fairstream.service.forgetting import Request, export, get_request, request_forget, request_id
from fairstream.service.records import Model, ModelSummary, Period, Time, Update

router = APIRouter(tags=["manage"])


class ModelInService(Reply):
    """The model in service."""

    model: str = Field(examples=["m00012"])
    """Id of the model."""


class AuditEntry(Reply):
    """A line of the audit record."""

    seq: int
    """Number of the entry, from 1."""
    time: Time
    """When it happened."""
    kind: str = Field(examples=["promote"])
    """What was decided."""
    body: Json[Any] = Field(examples=[{"model": "m00012", "by": "ann"}])
    """The decision, as JSON."""
    previous: str = Field(examples=["03aa" * 16])
    """Hash of the entry before."""
    hash: str = Field(examples=["9f2b" * 16])
    """Keyed hash of the entry and of the one before it."""


class ForgetRequest(Reply):
    """A request to forget a person."""

    id: str = Field(examples=["5b7c9d21e0f43a68"])
    """Id of the request: `GET /v1/forgettings/ID` shows whether it is completed."""
    n_events: int
    """Events that were removed; the attribute and models follow."""


class Forgetting(Request):
    """A request to forget a person."""


class ModelRow(ModelSummary):
    """A model in a list; `GET /v1/models/ID` adds its checks and configuration."""

    in_service: bool
    """Whether this model answers now."""
    reason: str | None = Field(examples=["all checks passed"])
    """Why the gate decided so, in a sentence."""


class FullModel(Model):
    """A model, and what the gate decided."""

    in_service: bool
    """Whether this model answers now."""


class FullPeriod(Period):
    """A closed period, and the level that the target chose in its update."""

    control: dict[str, Any] | None
    """The level that the target chose in its update; null without a target."""


@router.post("/v1/updates", operation_id="request_update", status_code=202, responses=problems("update_running"))
async def request_update(service: RunningService, key: Admin, response: Response) -> Update:
    """Start an update, which closes the open period; `GET /v1/updates/ID` gives its state."""
    update = await service.request_update(key.name)
    response.headers["Location"] = f"/v1/updates/{update.id}"
    return update


@router.get("/v1/updates/{update_id}", operation_id="show_update", responses=problems("unknown_id"))
def show_update(service: RunningService, _: Reader, update_id: UpdateId) -> Update:
    """Show an update: queued, running, promoted, rejected, skipped or failed, and why."""
    return updates.get(service.workspace.engine, update_id)


@router.get("/v1/updates", operation_id="list_updates", responses=problems("unknown_id"))
def list_updates(service: RunningService, _: Reader, cursor: Cursor = None, limit: Limit = 50) -> Page[Update]:
    """List updates, the newest first."""
    return Page[Update].of(updates.listed(service.workspace.engine, cursor, limit + 1), limit, "id")


@router.get("/v1/periods", operation_id="list_periods", responses=problems())
def list_periods(
    service: RunningService,
    _: Reader,
    cursor: Number = None,
    limit: Limit = 100,
) -> Page[FullPeriod]:
    """List closed periods, the oldest first, with the scores of the model in service on each."""
    return Page[FullPeriod].of(full_periods(service.workspace.engine, int(cursor or -1), limit + 1), limit, "t")


def full_periods(engine: Engine, after: int = -1, limit: int | None = None) -> list[FullPeriod]:
    """Return the closed periods after a given one, with the levels that the target chose."""
    periods, rows = closed_periods(engine, after=after, limit=limit), schema.models.c
    query = select(rows.t, rows.about).where(rows.t.in_([period.t for period in periods]))
    with engine.connect() as connection:
        control = {t: about.get("control") for t, about in connection.execute(query)}
    return [FullPeriod(**vars(period), control=control.get(period.t)) for period in periods]


@router.get("/v1/models", operation_id="list_models", responses=problems("unknown_id"))
def list_models(service: RunningService, _: Reader, cursor: Cursor = None, limit: Limit = 50) -> Page[ModelRow]:
    """List models, the newest first."""
    models, serving = registry.models(service.workspace.engine, cursor, limit + 1), _serving(service)
    rows = [
        ModelRow(**vars(model), in_service=model.id == serving, reason=model.decision.get("reason")) for model in models
    ]
    return Page[ModelRow].of(rows, limit, "id")


@router.get("/v1/models/{model_id}", operation_id="show_model", responses=problems("unknown_id"))
def show_model(service: RunningService, _: Reader, model_id: ModelId) -> FullModel:
    """Show a model: the gate's checks, its configuration, versions and sizes."""
    model = registry.model(service.workspace.engine, model_id)
    return FullModel(**vars(model), in_service=model_id == _serving(service))


def _serving(service: Service) -> str | None:
    current = registry.in_service(service.workspace.engine)
    return current and current.model


@router.post(
    "/v1/models/{model_id}/promote", operation_id="promote_model", responses=problems("unknown_id", "conflict")
)
def promote(service: RunningService, key: Admin, model_id: ModelId) -> ModelInService:
    """Promote a model, whatever the gate decided."""
    registry.promote(service.workspace, model_id, by=key.name)
    return ModelInService(model=model_id)


@router.post("/v1/rollback", operation_id="rollback", responses=problems("conflict"))
def rollback(service: RunningService, key: Admin) -> ModelInService:
    """Roll back to the parent of the model in service."""
    return ModelInService(model=registry.rollback(service.workspace, by=key.name))


@router.get("/v1/experiment", operation_id="show_experiment", responses=problems("unknown_id"))
def show_experiment(service: RunningService, _: Reader) -> Experiment:
    """Show the running experiment, else the last one: its arms, tests, and the decision."""
    return experiments.get(service.workspace.engine)


@router.put(
    "/v1/experiment",
    operation_id="start_experiment",
    responses=problems("unknown_id", "conflict", "update_running", "body_too_large"),
)
def start_experiment(service: RunningService, key: Admin, options: Options) -> Experiment:
    """Start an experiment: the model in service and another one side by side."""
    return experiments.start(service.workspace, options, by=key.name)


@router.delete("/v1/experiment", operation_id="stop_experiment", responses=problems("conflict"))
def stop_experiment(service: RunningService, key: Admin) -> Experiment:
    """End the running experiment: everybody gets the model in service."""
    return experiments.stop(service.workspace, by=key.name)


@router.post("/v1/experiment/promote", operation_id="promote_experiment", responses=problems("unknown_id", "conflict"))
def promote_experiment(service: RunningService, key: Admin) -> ModelInService:
    """Put model B into service, which ends the experiment."""
    return ModelInService(model=experiments.promote(service.workspace, by=key.name))


@router.get("/v1/audit", operation_id="list_audit", responses=problems())
def list_audit(
    service: RunningService,
    _: Admin,
    cursor: Number = None,
    limit: Limit = 1000,
) -> Page[AuditEntry]:
    """List the entries of the audit record, the oldest first."""
    page = [AuditEntry(**vars(entry)) for entry in entries(service.workspace.engine, int(cursor or 0), limit + 1)]
    return Page[AuditEntry].of(page, limit, "seq")


@router.delete("/v1/users/{user_id:path}", operation_id="forget_user", status_code=202, responses=problems("disk_full"))
async def forget_user(service: RunningService, key: Admin, user_id: UserId, response: Response) -> ForgetRequest:
    """Forget a person: events and lists at once, the attribute and the traces in models soon after.

    An id without events is accepted, too: the attributes and the models may know it.
    """
    n_events = await asyncio.to_thread(request_forget, service.workspace, [user_id], by=key.name)
    service.serving.forget([user_id])
    service.forgetter.wake()
    id_ = request_id(service.workspace, user_id)
    response.headers["Location"] = f"/v1/forgettings/{id_}"
    return ForgetRequest(id=id_, n_events=n_events)


@router.get("/v1/privacy", operation_id="show_privacy", responses=problems())
def show_privacy(service: RunningService, _: Reader) -> PrivacyStatus:
    """Show a quarter's privacy budget for numbers of groups, and how much of it is spent."""
    return PrivacyStatus.of(service.workspace.engine, service.workspace.config.privacy)


@router.get("/v1/forgettings/{id}", operation_id="show_forgetting", responses=problems("unknown_id"))
def show_forgetting(service: RunningService, _: Admin, id: RequestId) -> Forgetting:  # noqa: A002 (its name in the path)
    """Show a request to forget a person, and when it was completed."""
    return Forgetting(**vars(get_request(service.workspace.engine, id)))


@router.get(
    "/v1/users/{user_id:path}/data",
    operation_id="export_user",
    response_class=Response,
    responses={
        200: {"content": {"application/json": {"schema": {"type": "object"}, "example": {"user_id": "ann"}}}},
        **problems("unknown_id"),
    },
)
async def export_user(service: RunningService, _: Admin, user_id: UserId) -> Response:
    """Export the data of a person: events, attribute, and the models that know the id."""
    document = await asyncio.to_thread(export, service.workspace, user_id)
    if document is None:
        raise ApiError("unknown_id", "No event, attribute or model has this user id.")
    return JSONResponse(document)
