"""Types that several routes share, and the schemas of bodies that are read column by column."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, BeforeValidator, StringConstraints

from fairstream.service.fields import MAX_LENGTH

JSON, JSON_LINES, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
T = TypeVar("T")


def _digits(value: Any) -> Any:
    return str(value) if type(value) is int and -(2**63) <= value < 2**63 else value


Text = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_LENGTH, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", strict=True)
]
Id = Annotated[Text, BeforeValidator(_digits, json_schema_input_type=Text | int)]
"""A string, or a whole number that stands for its digits."""
UserId = Annotated[str, Path(min_length=1, max_length=MAX_LENGTH)]
Limit = Annotated[int, Query(ge=1, le=1000, description="The most entries on a page.")]


class Page(BaseModel, Generic[T]):
    """A part of a long list."""

    data: list[T]
    next: str | int | None
    """Where the next page begins: the value of `before` or `after` to ask with; null on the last one."""

    @classmethod
    def of(cls, entries: list[T], limit: int, position: str) -> Page[T]:
        """A page of entries that were read one beyond the limit; `position` is the field to go on from."""
        data = entries[:limit]
        return cls(data=data, next=getattr(data[-1], position) if len(entries) > limit else None)


_TEXT = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_LENGTH,
    "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]+$",
}
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
    "description": "An event sent again under the same id is stored once; without one it is made of the other fields.",
    "anyOf": [_OWN_ID, _WHOLE, {"type": "null"}],
}


def _object(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


def _body(json_schema: dict[str, Any], noun: str, columns: str) -> dict[str, Any]:
    arrow = f"An Arrow IPC stream with the columns {columns}."
    content = {
        JSON: {"schema": json_schema},
        JSON_LINES: {"schema": {"type": "string", "description": f"One {noun} a line."}},
        ARROW: {"schema": {"type": "string", "format": "binary", "description": arrow}},
    }
    return {"requestBody": {"required": True, "content": content}}


_EVENT = _object(("event_id",), user_id=_ID, item_id=_ID, time=_TIME, event_id=_EVENT_ID)
_EVENTS = {"type": "array", "items": _EVENT}
EVENTS_BODY = _body(
    {"anyOf": [_EVENTS, _EVENT, _object(events=_EVENTS)]}, "event", "user_id, item_id, time and, optionally, event_id"
)
USERS_BODY = _body({"type": "array", "items": _object(user_id=_ID, group=_ID)}, "user", "user_id and group")
