"""Types that several routes share, and models of bodies that are read column by column."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from fairstream.service.incoming import MAX_LENGTH, parse_json

JSON, JSON_LINES = "application/json", "application/x-ndjson"
REF = "#/components/schemas/"
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def _digits(value: Any) -> Any:
    whole = _whole(value)
    return str(whole) if type(whole) is int and -(2**63) <= whole < 2**63 else value


def _whole(value: Any) -> Any:
    """Take 3.0 for 3, as JSON Schema does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Reply(BaseModel):
    """An answer."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Body(BaseModel):
    """A request's body, without unknown fields."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")


PLAIN = r"^[^\x00-\x1f\x7f-\x9f]+$"  # no control characters; PostgreSQL stores no 0
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_LENGTH, pattern=PLAIN, strict=True)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Id = Annotated[Text, BeforeValidator(_digits, json_schema_input_type=Text | Whole)]
"""A string, or a whole number, which stands for its digits."""
OwnId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_LENGTH, pattern=r"^[^~\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"),
]
"""Ids that begin with ~ are the service's."""
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, strict=True)]
UserId = Annotated[str, Path(min_length=1, max_length=MAX_LENGTH, description="Id of the person.", examples=["ann"])]
ItemId = Annotated[Text, Path(description="Id of the item.", examples=["alien"])]
ModelId = Annotated[str, Path(description="Id of the model.", examples=["m00012"])]
UpdateId = Annotated[str, Path(description="Id of the update.", examples=["u-5b7c9d21e0f43a68"])]
RequestId = Annotated[str, Path(description="Id of the request.", examples=["5b7c9d21e0f43a68"])]
Limit = Annotated[int, Query(ge=1, le=1000, description="The most entries on a page.", examples=[50])]
_BEFORE, _CURSORS = "`cursor` of the page before.", ["12"]
Cursor = Annotated[str | None, Query(description=_BEFORE, examples=_CURSORS, min_length=1, max_length=MAX_LENGTH)]
Number = Annotated[str | None, Query(description=_BEFORE, examples=_CURSORS, pattern="^[0-9]{1,9}$")]


class Page(Reply, Generic[T]):
    """A page of a long list."""

    model_config = ConfigDict(json_schema_extra={"description": "A page of a long list."})

    data: list[T]
    """The entries of this page."""
    cursor: str | None = Field(examples=["12"])
    """The `cursor` of the next page; null on the last one."""

    @classmethod
    def of(cls, entries: list[T], limit: int, position: str) -> Page[T]:
        """Return a page of entries read one beyond the limit; the cursor is the last entry's field `position`."""
        data = entries[:limit]
        return cls(data=data, cursor=str(getattr(data[-1], position)) if len(entries) > limit else None)


class Event(Body):
    """What somebody did with an item."""

    user_id: Id = Field(examples=["ann"])
    """Id of the person."""
    item_id: Id = Field(examples=["alien"])
    """Id of the item."""
    time: Annotated[float, Field(ge=-2_208_988_800, lt=253_402_300_800)] | datetime = Field(
        examples=["2026-11-16T09:30:00Z"]
    )
    """Seconds since 1970, or ISO 8601 (UTC unless it says otherwise); at most `limits.max_future_seconds` ahead."""
    kind: str | None = Field(None, examples=["purchase"])
    """One of the kinds in `[events]` of fairstream.toml; without one, its `default`."""
    event_id: OwnId | Whole | None = Field(None, examples=["e1"])
    """An event sent again under the same id is stored once; without one the other fields identify it."""


class EventBatch(Body):
    """Several events, which are stored all or none."""

    events: list[Event]
    """The events."""


class UserGroup(Body):
    """Somebody's group."""

    user_id: Id = Field(examples=["ann"])
    """Id of the person."""
    group: Id = Field(examples=["F"])
    """The value of the attribute; one of `groups`, if fairstream.toml names them."""


class ItemChange(BaseModel):
    """An item, with the fields that change; further fields are the properties of `[items]` in fairstream.toml."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        extra="allow",
        json_schema_extra={"examples": [{"item_id": "boot-42", "category": "shoes", "price": 79.9, "stock": 3}]},
    )

    item_id: Id = Field(examples=["boot-42"])
    """Id of the item."""
    available: bool = True
    """Without it a new item is available, and a known one stays as it is."""


def parse_body(model: type[M], body: bytes) -> M:
    """Parse a body; in a thread, unlike FastAPI, which parses on the event loop while every other request waits."""
    try:
        return model.model_validate(parse_json(body, "the body"))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def json_body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a body that `parse_body` parses."""
    schema = {"$ref": f"{REF}{model.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def body_of(model: type[BaseModel], *others: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a body: a list of these, JSON Lines of them, or one of the other forms."""
    one = {"$ref": f"{REF}{model.__name__}"}
    forms = [{"type": "array", "items": one}, *({"$ref": f"{REF}{other.__name__}"} for other in others)]
    content = {
        JSON: {"schema": {"anyOf": forms} if others else forms[0]},
        JSON_LINES: {"schema": {"type": "string", "description": f"One {model.__name__} a line."}},
    }
    return {"requestBody": {"required": True, "content": content}}
