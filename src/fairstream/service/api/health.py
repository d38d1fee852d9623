"""GET /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from fairstream.errors import FairstreamError
from fairstream.service import registry, schema
from fairstream.service.api.auth import Reader
from fairstream.service.api.errors import problems
from fairstream.service.api.schemas import Reply
from fairstream.service.api.service import RunningService, Service
from fairstream.service.budget import PrivacyStatus
from fairstream.service.database import now
from fairstream.service.event_store import closed_periods
from fairstream.service.forgetting import pending_requests
from fairstream.service.gaps import latest_gap, score_in
from fairstream.service.records import FINISHED

router = APIRouter(tags=["health"])
_LATEST = 60  # periods in which the latest gap is looked for
PUBLIC = frozenset(("/healthz", "/readyz", "/v1/openapi.json"))  # paths that need no key


class Liveness(Reply):
    """The process is alive."""

    status: Literal["alive"] = Field("alive", examples=["alive"])
    """Always "alive"."""


class Readiness(Reply):
    """Whether the service can answer, its model, and its problems."""

    status: Literal["ready", "degraded", "unavailable"] = Field(examples=["ready"])
    """Degraded: it answers, but has problems. Unavailable: it cannot make lists."""
    model: str | None = Field(examples=["m00012"])
    """Id of the serving model; null if there is none yet, and lists are by popularity."""
    problems: list[str] = Field(examples=[[]])
    """What is wrong, each in a sentence."""


@router.get("/healthz", operation_id="healthz")
@router.head("/healthz", include_in_schema=False)
async def healthz() -> Liveness:
    """The process is alive."""
    return Liveness()


@router.get(
    "/readyz",
    operation_id="readyz",
    responses={503: {"model": Readiness, "description": "The service cannot make lists."}},
)
@router.head("/readyz", include_in_schema=False)
async def readyz(service: RunningService, response: Response) -> Readiness:
    """Return 200 as long as the service can make lists; `problems` lists what else is wrong."""
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
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": "fairstream_ready 1.0"}}},
        **problems(),
    },
)
def metrics(service: RunningService, _: Reader) -> Response:
    """Return metrics in Prometheus's format."""
    service.measure()
    families, model = list[Metric](), service.serving.status().model
    if model is not None:
        families.append(InfoMetricFamily("fairstream_model", "The serving model.", value={"id": model}))
    try:
        families += [*_of_workspace(service), _gauge("database_up", "The database can be read.", 1)]
    except (FairstreamError, SQLAlchemyError):  # an outage is when the other numbers matter most
        families.append(_gauge("database_up", "The database can be read.", 0))
    return Response(service.metrics.text(families), media_type=CONTENT_TYPE_LATEST)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fairstream_{name}", about, value=value)


def _of_workspace(service: Service) -> Iterator[Metric]:
    """Yield the numbers of all processes, from the database."""
    engine, rows = service.workspace.engine, schema.updates.c
    yield _gauge("open_events", "Events for the next update.", service.store.n_open())
    with engine.connect() as connection:
        query = select(rows.state, func.count().label("n")).group_by(rows.state)
        counts = {row.state: row.n for row in connection.execute(query)}
    family = CounterMetricFamily("fairstream_updates", "Updates that have ended.", labels=("state",))
    for state in counts.keys() & FINISHED:
        family.add_metric((state,), counts.pop(state))
    yield family
    yield _gauge("updates_running", "Updates queued or running.", sum(counts.values()))
    n_unpromoted = registry.n_unpromoted(engine)
    yield _gauge("unpromoted_in_a_row", "Updates since the last promotion that ended without one.", n_unpromoted)
    n_pending, oldest = pending_requests(engine)
    yield _gauge("forgettings_pending", "Requests to forget people that are not completed.", n_pending)
    age = 0 if oldest is None else (now() - oldest) / 1e6
    yield _gauge("forgetting_oldest_seconds", "Age of the oldest of them.", age)
    if (current := registry.in_service(engine)) is not None:
        yield _gauge("promoted_seconds", "Time of the last promotion.", current.since / 1e6)
    privacy = PrivacyStatus.of(engine, service.workspace.config.privacy)
    yield _gauge("privacy_spent", "Share of this quarter's privacy budget that is spent.", privacy.spent)
    periods = closed_periods(engine, limit=_LATEST)
    if periods and (mean := score_in(periods[-1].evaluation).get("mean")) is not None:
        yield _gauge("ndcg", "NDCG on the last closed period.", mean)
    _, gap = latest_gap(periods)
    if gap is not None:
        yield _gauge("largest_gap", "The largest gap of a group, as last published.", gap.value)
        about = "Half of the 95 % interval of the largest gap, privacy noise included."
        yield _gauge("largest_gap_margin", about, gap.margin)
