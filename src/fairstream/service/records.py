"""What the database says of periods, models and updates: one class each, for the updater, the API and the dashboard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict
from sqlalchemy import RowMapping

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ModelState = Literal["promoted", "rejected", "failed"]
UpdateState = Literal["queued", "running", "promoted", "rejected", "skipped", "failed"]
FINISHED: tuple[UpdateState, ...] = ("promoted", "rejected", "skipped", "failed")


def from_microseconds(value: Any) -> Any:
    """A column's microseconds since 1970 as a time in UTC; anything else is left to pydantic."""
    return _EPOCH + timedelta(microseconds=value) if isinstance(value, int) else value


Time = Annotated[datetime, BeforeValidator(from_microseconds)]


class Record(BaseModel):
    """A row of a table, read once and never changed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def from_row(cls, row: RowMapping, **more: Any) -> Self:
        """From the columns of a row; those that the record does not have are ignored."""
        return cls.model_validate({**row, **more})


class Period(Record):
    """A closed period."""

    t: int
    first_seq: int
    last_seq: int
    closed: Time
    n_events: int
    n_users: int
    n_late: int
    """Events dated before the last one of the period before."""
    split_time: int
    """Time and number of the first held-out event: those before it, by time and number, were learned at once."""
    split_seq: int
    evaluation: dict[str, Any] | None
    """How the model in service did on it, before it learned anything of it."""


class Model(Record):
    """A candidate, and what the gate decided."""

    id: str
    t: int
    parent: str | None
    """The model that it was fine-tuned from."""
    state: ModelState
    folder: str
    """Where its files are; a new one is written when somebody in it is forgotten, none is ever changed."""
    created: Time
    training_seconds: float
    decision: dict[str, Any]
    """The gate's checks, each with its numbers."""
    about: dict[str, Any]
    """Configuration, hash of the data, versions, sizes."""


class Update(Record):
    """An update that was asked for, and how it ended."""

    id: str
    state: UpdateState
    reason: str | None
    """Why it ended as it did, in a sentence."""
    requested: Time
    requested_by: str
    started: Time | None
    finished: Time | None
    t: int | None
    """The period that it closed, if it closed one."""
    model: str | None
    """The candidate that it made, if it made one."""
