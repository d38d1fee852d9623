"""The rows of periods, models and updates, for the updater, the API and the dashboard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fairstream.errors import WorkspaceError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

UpdateState = Literal["queued", "running", "promoted", "rejected", "skipped", "failed", "interrupted"]
FINISHED: tuple[UpdateState, ...] = ("promoted", "rejected", "skipped", "failed", "interrupted")


class UnknownIdError(WorkspaceError):
    """No row has this id."""


def from_microseconds(value: Any) -> Any:
    """A column's microseconds since 1970 as a time in UTC; anything else is left to pydantic."""
    return _EPOCH + timedelta(microseconds=value) if isinstance(value, int) else value


Time = Annotated[datetime, BeforeValidator(from_microseconds)]


class Record(BaseModel):
    """A row of a table; columns that the record does not have are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Period(Record):
    """A closed period."""

    t: int
    first_seq: int
    last_seq: int
    closed: Time
    n_events: int
    n_users: int
    n_late: int  # events dated before the last one of the period before
    latest_time: int  # of its events, by their own time
    held_out: float  # the share of its users whose latest events were held out
    max_of_user: int  # events of one user from this number on were neither learned nor tested
    replay_until: int | None = None  # the last event of the imported history that this period is a part of
    evaluation: dict[str, Any] | None  # of the model in service, before it learned any event of the period


class Model(Record):
    """A candidate, and what the gate decided."""

    id: str
    t: int
    parent: str | None  # the model that it was fine-tuned from
    state: Literal["promoted", "rejected", "failed"]
    folder: str  # the name of its files, which never change: forgetting writes new ones
    created: Time
    training_seconds: float
    decision: dict[str, Any]  # the gate's checks, each with its numbers
    about: dict[str, Any]  # configuration, hash of the data, versions, sizes

    @property
    def reason(self) -> str:
        """The reason for the decision of the gate."""
        return str(self.decision.get("reason") or "no reason was recorded")

    @property
    def is_manual(self) -> bool:
        """Whether an admin promoted it after the gate had rejected it."""
        return self.state == "promoted" and not all(check.get("ok") for check in self.decision.get("checks") or ())


class Update(Record):
    """A requested update and its outcome."""

    id: str
    state: UpdateState
    reason: str | None  # the reason of its outcome, in a sentence
    requested: Time
    requested_by: str
    started: Time | None
    finished: Time | None
    t: int | None  # the period that it closed, if it closed one
    model: str | None  # the candidate that it made, if it made one
