"""Types that several routes share, and the schemas of bodies that are read column by column."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, BeforeValidator, StringConstraints, TypeAdapter

from fairstream.service.incoming import MAX_LENGTH

JSON, JSON_LINES = "application/json", "application/x-ndjson"
T = TypeVar("T")


def _digits(value: Any) -> Any:
    return str(value) if type(value) is int and -(2**63) <= value < 2**63 else value


Text = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_LENGTH, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", strict=True)
]
Id = Annotated[Text, BeforeValidator(_digits, json_schema_input_type=Text | int)]
"""A string, or a whole number, which stands for its digits."""
UserId = Annotated[str, Path(min_length=1, max_length=MAX_LENGTH)]
Limit = Annotated[int, Query(ge=1, le=1000, description="The most entries on a page.")]

Cursor = Annotated[str | None, Query(description="`cursor` of the page before.", min_length=1, max_length=MAX_LENGTH)]
Number = Annotated[str | None, Query(description="`cursor` of the page before.", pattern="^[0-9]{1,9}$")]


class Page(BaseModel, Generic[T]):
    """A part of a long list."""

    data: list[T]
    cursor: str | None  # for the next page; null on the last one

    @classmethod
    def of(cls, entries: list[T], limit: int, position: str) -> Page[T]:
        """Return a page of entries read one beyond the limit; the cursor is the last entry's field `position`."""
        data = entries[:limit]
        return cls(data=data, cursor=str(getattr(data[-1], position)) if len(entries) > limit else None)


_TEXT = TypeAdapter(Text).json_schema()
_WHOLE = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
_ID = {"anyOf": [_TEXT, _WHOLE]}
_OWN_ID = {**_TEXT, "pattern": "^[^~\\u0000-\\u001f\\u007f-\\u009f][^\\u0000-\\u001f\\u007f-\\u009f]*$"}
_TIME = {
    "description": "Seconds since 1970, or ISO 8601 (UTC unless it says otherwise); at most "
    "`limits.max_future_seconds` ahead of the clock.",
    "anyOf": [
        {"type": "number", "minimum": -2_208_988_800, "exclusiveMaximum": 253_402_300_800},
        {"type": "string", "format": "date-time"},
    ],
}
_EVENT_ID = {
    "description": "An event sent again under the same id is stored once; without one the other fields identify it.",
    "anyOf": [_OWN_ID, _WHOLE, {"type": "null"}],
}


def _object(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


def _body(json_schema: dict[str, Any], noun: str) -> dict[str, Any]:
    content = {
        JSON: {"schema": json_schema},
        JSON_LINES: {"schema": {"type": "string", "description": f"One {noun} a line."}},
    }
    return {"requestBody": {"required": True, "content": content}}


_KIND = {
    "description": "One of the kinds in `[events]` of fairstream.toml; without one, its `default`.",
    "anyOf": [{"type": "string", "examples": ["purchase"]}, {"type": "null"}],
}
_EVENT = _object(("kind", "event_id"), user_id=_ID, item_id=_ID, time=_TIME, kind=_KIND, event_id=_EVENT_ID)
_EVENTS = {"type": "array", "items": _EVENT}
EVENTS_BODY = _body({"anyOf": [_EVENTS, _EVENT, _object(events=_EVENTS)]}, "event")
USERS_BODY = _body({"type": "array", "items": _object(user_id=_ID, group=_ID)}, "user")
_ITEM = {
    "type": "object",
    "required": ["item_id"],
    "properties": {
        "item_id": _ID,
        "available": {
            "type": "boolean",
            "description": "false withdraws the item from every list; a new item is available.",
        },
    },
    "additionalProperties": {"description": "A property that `[items]` of fairstream.toml declares; null removes it."},
    "examples": [{"item_id": "boot-42", "category": "shoes", "price": 79.9, "stock": 3}],
}
ITEMS_BODY = _body({"type": "array", "items": _ITEM}, "item")
