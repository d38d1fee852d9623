"""GET, PUT and DELETE /v1/experiment, and its promotion."""

from __future__ import annotations

from fastapi import APIRouter

from fairstream.service import experiments
from fairstream.service.api.auth import Admin, Reader
from fairstream.service.api.errors import problems
from fairstream.service.api.manage import ModelInService
from fairstream.service.api.service import RunningService
from fairstream.service.experiments import Experiment, Options

router = APIRouter(tags=["experiment"])


@router.get("/v1/experiment", operation_id="show_experiment", responses=problems("unknown_id"))
def show(service: RunningService, _: Reader) -> Experiment:
    """Show the running experiment, else the last one: its arms, tests, and the decision."""
    return experiments.get(service.workspace.engine)


@router.put(
    "/v1/experiment",
    operation_id="start_experiment",
    responses=problems("unknown_id", "conflict", "update_running", "body_too_large"),
)
def start(service: RunningService, key: Admin, options: Options) -> Experiment:
    """Start an experiment: the model in service and another one side by side."""
    return experiments.start(service.workspace, options, by=key.name)


@router.delete("/v1/experiment", operation_id="stop_experiment", responses=problems("conflict"))
def stop(service: RunningService, key: Admin) -> Experiment:
    """End the running experiment: everybody gets the model in service."""
    return experiments.stop(service.workspace, by=key.name)


@router.post("/v1/experiment/promote", operation_id="promote_experiment", responses=problems("unknown_id", "conflict"))
def promote(service: RunningService, key: Admin) -> ModelInService:
    """Put model B into service, which ends the experiment."""
    return ModelInService(model=experiments.promote(service.workspace, by=key.name))
