"""The catalogue at /v1/items, and the rules of lists at /v1/rules."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request

from fairstream.service import items, rules
from fairstream.service.api.auth import Admin, Ingester, Reader
from fairstream.service.api.errors import problems
from fairstream.service.api.ingest import BODY, content_type, objects_in
from fairstream.service.api.schemas import Cursor, ItemChange, ItemId, Limit, Page, body_of
from fairstream.service.api.service import RunningService, Service

router = APIRouter(tags=["items"])


@router.put("/v1/items", operation_id="put_items", openapi_extra=body_of(ItemChange), responses=problems(*BODY))
async def put_items(request: Request, service: RunningService, _: Ingester) -> items.ItemsReceipt:
    """Add, describe, withdraw and restore items, all of them or none.

    Missing fields stay as they are, and null removes a property. Lists of this process reflect the change when the
    request is answered, those of other processes within a second.
    """
    kind, body = content_type(request), await request.body()
    return await asyncio.to_thread(_put_items, service, body, kind)


def _put_items(service: Service, body: bytes, kind: str) -> items.ItemsReceipt:
    workspace = service.workspace
    changes = items.items_from_json(objects_in(body, kind, "item"), workspace.config.items.properties)
    receipt = items.store(workspace.engine, changes)
    service.follower.follow_items()
    return receipt


@router.get("/v1/items", operation_id="list_items", responses=problems())
def list_items(
    service: RunningService,
    _: Reader,
    available: Annotated[bool | None, Query(description="Only those that are, or are not, available.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[items.Item]:
    """List the catalogue by item id; an item that it does not have is available and has no properties."""
    return Page[items.Item].of(
        items.listed(service.workspace.engine, available, cursor or "", limit + 1), limit, "item_id"
    )


@router.get("/v1/items/{item_id:path}", operation_id="get_item", responses=problems("unknown_id"))
def get_item(service: RunningService, _: Reader, item_id: ItemId) -> items.Item:
    """Show an item with its properties."""
    return items.item(service.workspace.engine, item_id)


@router.get("/v1/rules", operation_id="get_rules", response_model_exclude_none=True, responses=problems())
def get_rules(service: RunningService, _: Reader) -> list[rules.Rule]:
    """Show the rules that shape every list."""
    return rules.stored(service.workspace.engine)


@router.put(
    "/v1/rules",
    operation_id="put_rules",
    response_model_exclude_none=True,
    responses=problems("body_too_large"),
)
def put_rules(service: RunningService, key: Admin, wanted: list[rules.Rule]) -> list[rules.Rule]:
    """Replace all rules.

    They apply to every list after ranking: first boosts, then limits, then pins. No rule brings back an item that is
    withdrawn, filtered or excluded, or that the person has had.
    """
    workspace = service.workspace
    rules.Rules.of(wanted, workspace.config.items.properties)
    rules.store(workspace.engine, wanted, by=key.name)
    service.follower.follow_items()
    return wanted
