"""What goes in and comes out, as the OpenAPI schema tells it.

Routes read bodies and write answers by themselves, which is what makes them quick; these schemas tell
what they do, and the tests hold them to it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from fairstream.service.ids import MAX_LENGTH

JsonSchema = dict[str, Any]
JSON, JSON_LINES, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"

_TEXT: JsonSchema = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_LENGTH,
    "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]+$",
}
_ID: JsonSchema = {"anyOf": [_TEXT, {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}]}
_EVENT: JsonSchema = {
    "type": "object",
    "required": ["user_id", "item_id", "time"],
    "additionalProperties": False,
    "properties": {
        "user_id": _ID,
        "item_id": _ID,
        "time": {
            "description": "Seconds since 1970, or ISO 8601 (without a zone: UTC); not further ahead of the clock than "
            "the workspace allows.",
            "anyOf": [
                {"type": "number", "minimum": -2_208_988_800, "exclusiveMaximum": 253_402_300_800},
                {"type": "string", "format": "date-time"},
            ],
        },
        "event_id": {
            "description": "An event that comes again under the same id is stored once. Where it is missing it is made "
            "from the other fields.",
            "anyOf": [
                {**_TEXT, "pattern": "^[^~\\u0000-\\u001f\\u007f-\\u009f][^\\u0000-\\u001f\\u007f-\\u009f]*$"},
                _ID["anyOf"][1],
                {"type": "null"},
            ],
        },
    },
}
_PERSON: JsonSchema = {
    "type": "object",
    "required": ["user_id", "group"],
    "additionalProperties": False,
    "properties": {"user_id": _ID, "group": _ID},
}


def _body(json_schema: JsonSchema, lines: str, columns: str) -> JsonSchema:
    return {
        "required": True,
        "content": {
            JSON: {"schema": json_schema},
            JSON_LINES: {"schema": {"type": "string", "description": lines}},
            ARROW: {"schema": {"type": "string", "format": "binary", "description": columns}},
        },
    }


EVENTS = _body(
    {
        "anyOf": [
            {"type": "array", "items": _EVENT},
            _EVENT,
            {
                "type": "object",
                "required": ["events"],
                "additionalProperties": False,
                "properties": {"events": {"type": "array", "items": _EVENT}},
            },
        ]
    },
    "One event a line.",
    "An Arrow IPC stream with the columns user_id, item_id, time and, where there is one, event_id.",
)
PEOPLE = _body(
    {"type": "array", "items": _PERSON},
    "One user a line.",
    "An Arrow IPC stream with the columns user_id and group.",
)


def batch(max_users: int, max_k: int) -> JsonSchema:
    """A body that asks for the lists of several users."""
    return {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["users"],
                    "additionalProperties": False,
                    "properties": {
                        "users": {"type": "array", "items": _ID, "maxItems": max_users},
                        "k": k_schema(max_k),
                    },
                }
            }
        },
    }


def k_schema(max_k: int) -> JsonSchema:
    """How many items may be asked for."""
    return {"type": "integer", "minimum": 1, "maximum": max_k, "default": min(20, max_k)}


def parameter(name: str, where: Literal["path", "query"], schema: JsonSchema, description: str) -> JsonSchema:
    """A parameter of a path or of a query."""
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": description}


USER_ID = parameter("user_id", "path", {"type": "string", "minLength": 1, "maxLength": MAX_LENGTH}, "Any user.")


class Taken(BaseModel):
    """What became of the events of a request."""

    accepted: int
    """Stored now."""
    repeated: int
    """There already, by their ids."""
    forgotten: int
    """Of people who asked to be forgotten; not stored."""


class TakenPeople(BaseModel):
    """How many users were told of."""

    stored: int


class Item(BaseModel):
    """One place of a list."""

    item_id: str
    score: float


class Recommendations(BaseModel):
    """A user's best items, best first."""

    user_id: str
    model: str | None
    """null where there is none and popularity answers everybody."""
    source: Literal["model", "popularity"]
    """"popularity" for users of whom the model has nothing to say."""
    items: list[Item]


class ManyRecommendations(BaseModel):
    """An answer for each of the users asked for, in their order; all of one model."""

    model: str | None
    answers: list[Recommendations]


class Started(BaseModel):
    """An update has begun."""

    started: Literal[True]


class InService(BaseModel):
    """The model that answers from now on."""

    model: str


class Period(BaseModel):
    """A closed period."""

    t: int
    first_seq: int
    last_seq: int
    closed: str
    n_events: int
    n_users: int
    n_late: int
    evaluation: dict[str, Any] | None
    """How the model in service did on it, before it learned anything of it."""
    control: dict[str, Any] | None
    """What the controller of the disparity measured and did when it was learned, where there is one."""


class Model(BaseModel):
    """A candidate, and what became of it."""

    id: str
    t: int
    parent: str | None
    state: str
    in_service: bool
    created: str
    training_seconds: float
    decision: dict[str, Any]
    about: dict[str, Any]


class AuditEntry(BaseModel):
    """A line of the audit record."""

    seq: int
    time: str
    kind: str
    body: Any
    previous: str
    hash: str


class Health(BaseModel):
    """How the service is."""

    status: str
