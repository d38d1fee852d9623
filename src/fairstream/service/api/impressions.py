"""POST /v1/impressions and GET /v1/impressions/report."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from fairstream.service.api.auth import Ingester, Reader
from fairstream.service.api.errors import problems
from fairstream.service.api.schemas import Id, Text
from fairstream.service.api.service import RunningService
from fairstream.service.database import now
from fairstream.service.impressions import ImpressionsReceipt, Report
from fairstream.service.incoming import Rows, micros_of

router = APIRouter(tags=["impressions"])


class Impression(BaseModel):
    """A list that somebody saw."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    user_id: Id = Field(examples=["ann"])
    """Who saw it."""
    items: list[Id] = Field(min_length=1, max_length=1000, examples=[["boot-42", "sock-7"]])
    """The items that were shown, in their order."""
    time: float | str | None = Field(None, examples=["2026-01-31T12:00:00Z"])
    """When it was shown: seconds since 1970 or ISO 8601; now if it is missing."""
    list_id: str | None = Field(None, max_length=8192, examples=["m00001-5f2a"])
    """`list_id` of the response that held the list; a list that is sent again under its id is stored once."""
    placement: Text | None = Field(None, examples=["home"])
    """Where it was shown."""


class Impressions(BaseModel):
    """Lists that people saw."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    impressions: list[Impression] = Field(max_length=10_000)
    """The lists; all of them are stored or none."""


@router.post(
    "/v1/impressions", operation_id="ingest_impressions", responses=problems("body_too_large", "invalid", "disk_full")
)
async def ingest_impressions(service: RunningService, _: Ingester, body: Impressions) -> ImpressionsReceipt:
    """Store lists that people saw; the answer comes when they are on disk."""
    moment, latest = now(), service.limits.max_future_seconds
    lists, rows = [], Rows("impression")
    for row, each in enumerate(body.impressions):
        time = moment if each.time is None else micros_of(each.time, row, rows)
        if time > moment + latest * 1_000_000:
            raise rows.error(row, f"time must be at most {latest} seconds ahead of the clock")
        if len(set(each.items)) < len(each.items):
            raise rows.error(row, "items must be different")
        shown = service.stamp(each.user_id, each.items, time, each.list_id)
        lists.append(shown._replace(placement=each.placement))
    return await service.impressions.ask(lists)


@router.get("/v1/impressions/report", operation_id="report_impressions", responses=problems("invalid"))
def report(
    service: RunningService,
    _: Reader,
    hours: Annotated[int, Query(ge=1, le=24 * 366)] = 24,
) -> Report:
    """Report what was shown in the last hours, and what came of it."""
    return Report.of(service.workspace.engine, hours)
