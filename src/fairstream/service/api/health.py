"""GET /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from fairstream.errors import FairstreamError
from fairstream.service import registry, schema
from fairstream.service.api.auth import Reader
from fairstream.service.api.errors import problems
from fairstream.service.api.service import RunningService, Service
from fairstream.service.gaps import gap_in, score_in
from fairstream.service.periods import closed_periods
from fairstream.service.records import FINISHED, Period

router = APIRouter(tags=["health"])
PUBLIC = frozenset(("/healthz", "/readyz", "/v1/openapi.json"))
"""Paths that need no key."""


class Health(BaseModel):
    """The process is alive."""

    status: Literal["alive"] = "alive"


class Readiness(BaseModel):
    """Whether the service can answer, with which model, and what is wrong."""

    status: Literal["ready", "degraded", "unavailable"]
    """Degraded: it answers, but something is wrong."""
    model: str | None
    problems: list[str]


@router.get("/healthz", operation_id="healthz")
@router.head("/healthz", include_in_schema=False)
async def healthz() -> Health:
    """The process is alive."""
    return Health()


@router.get(
    "/readyz", operation_id="readyz", responses={503: {"model": Readiness, "description": "No list can be made."}}
)
@router.head("/readyz", include_in_schema=False)
async def readyz(service: RunningService, response: Response) -> Readiness:
    """200 as long as lists can be made; `problems` says what else is wrong."""
    status, problems = service.serving.status(), service.problems()
    if not status.ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
        return Readiness(status="unavailable", model=None, problems=problems)
    return Readiness(status="degraded" if problems else "ready", model=status.model, problems=problems)


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()},
)
def metrics(service: RunningService, _: Reader) -> Response:
    """Numbers in Prometheus's format."""
    families = [*_of_process(service)]
    try:
        families += _of_workspace(service)
    except (FairstreamError, SQLAlchemyError):  # the other numbers are wanted most when the database is away
        families.append(GaugeMetricFamily("fairstream_database_up", "The database can be read.", value=0))
    return Response(service.metrics.text(families), media_type=CONTENT_TYPE_LATEST)


def _of_process(service: Service) -> Iterator[Metric]:
    status = service.serving.status()
    yield GaugeMetricFamily("fairstream_ready", "Lists can be made.", value=status.ready)
    yield GaugeMetricFamily("fairstream_problems", "Problems that /readyz names.", value=len(service.problems()))
    yield GaugeMetricFamily("fairstream_batches_waiting", "Batches to be stored.", value=service.writer.n_waiting)
    yield GaugeMetricFamily(
        "fairstream_events_behind", "Stored events that lists do not know of yet.", value=status.events_behind
    )
    if status.model is not None:
        yield InfoMetricFamily("fairstream_model", "The model that answers.", value={"id": status.model})


def _of_workspace(service: Service) -> Iterator[Metric]:
    """What the database says, whichever process has done it."""
    engine, rows = service.workspace.engine, schema.updates.c
    yield GaugeMetricFamily("fairstream_open_events", "Events for the next update.", value=service.store.n_open())
    with engine.connect() as connection:
        counts = connection.execute(select(rows.state, func.count()).group_by(rows.state)).all()
    family = CounterMetricFamily("fairstream_updates", "Updates that have ended.", labels=("state",))
    for state, n in counts:
        if state in FINISHED:
            family.add_metric((state,), n)
    yield family
    running = sum(n for state, n in counts if state not in FINISHED)
    yield GaugeMetricFamily("fairstream_updates_running", "Updates queued or running.", value=running)
    in_a_row = registry.rejections_in_a_row(engine)
    yield GaugeMetricFamily("fairstream_rejected_in_a_row", "Rejections since the last promotion.", value=in_a_row)
    if (current := registry.in_service(engine)) is not None:
        since = current.since / 1e6
        yield GaugeMetricFamily("fairstream_promoted_seconds", "Time of the last promotion.", value=since)
    for period in closed_periods(engine, limit=1):
        yield from _of_period(period)
    yield GaugeMetricFamily("fairstream_database_up", "The database can be read.", value=1)


def _of_period(period: Period) -> Iterator[Metric]:
    """How the model in service did on the last period."""
    ndcg = score_in(period.evaluation)
    if ndcg.get("mean") is not None:
        yield GaugeMetricFamily("fairstream_ndcg", "NDCG on the last closed period.", value=ndcg["mean"])
    if (gap := gap_in(ndcg)) is not None:
        yield GaugeMetricFamily("fairstream_largest_gap", "The largest gap of a group on it.", value=gap.value)
        if gap.margin is not None:
            what = "Half of the 95 % interval of the largest gap, privacy noise included."
            yield GaugeMetricFamily("fairstream_largest_gap_margin", what, value=gap.margin)
