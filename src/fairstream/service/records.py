"""The rows of periods, models and updates, for the updater, the API and the dashboard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fairstream.errors import WorkspaceError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

UpdateState = Literal["queued", "running", "promoted", "rejected", "skipped", "failed", "interrupted"]
FINISHED: tuple[UpdateState, ...] = ("promoted", "rejected", "skipped", "failed", "interrupted")


class UnknownIdError(WorkspaceError):
    """No row has this id."""


def from_microseconds(value: Any) -> Any:
    """Return microseconds since 1970 as a time in UTC; leave any other value to pydantic."""
    return _EPOCH + timedelta(microseconds=value) if isinstance(value, int) else value


Time = Annotated[datetime, BeforeValidator(from_microseconds)]


class Record(BaseModel):
    """A row of a table; columns that the record does not have are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Period(Record):
    """A closed period."""

    t: int = Field(examples=[12])
    """Number of the period, from 0."""
    first_seq: int = Field(examples=[110_001])
    """Number of its first event."""
    last_seq: int = Field(examples=[120_000])
    """Number of its last event."""
    closed: Time
    """When the update closed it."""
    n_events: int = Field(examples=[9_999])
    """Number of events."""
    n_users: int = Field(examples=[4_821])
    """Number of people with an event."""
    n_late: int = Field(examples=[17])
    """Events dated before the last one of the period before."""
    latest_time: int = Field(examples=[1_794_800_000_000_000])
    """Time of its latest event, in microseconds since 1970."""
    held_out: float
    """Share of its users whose latest events judged the candidate."""
    max_of_user: int = Field(examples=[1_000])
    """Events of one user beyond this number were left out."""
    replay_until: int | None = Field(None, examples=[9_999])
    """Last event of the imported history that the period is a part of; else null."""
    evaluation: dict[str, Any] | None
    """Quality of the model in service, before it learned the period."""


class ModelSummary(Record):
    """A candidate without its details."""

    id: str = Field(examples=["m00012"])
    """Id of the model."""
    t: int = Field(examples=[12])
    """Number of its period, from 0."""
    parent: str | None = Field(examples=["m00011"])
    """The model that it was fine-tuned from; null for the first one."""
    state: Literal["promoted", "rejected", "failed"]
    """What the gate decided."""
    created: Time
    """When it was created."""
    training_seconds: float = Field(examples=[71.5])
    """How long training took."""


class Model(ModelSummary):
    """A candidate, and what the gate decided."""

    folder: str = Field(examples=["m00012"])
    """Name of its files, which never change: forgetting writes new ones."""
    decision: dict[str, Any] = Field(examples=[{"promote": True, "reason": "all checks passed"}])
    """The gate's checks, each with its numbers."""
    about: dict[str, Any] = Field(examples=[{"n_users": 48_210, "n_items": 3_702}])
    """Configuration, hash of the data, versions and sizes."""

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

    id: str = Field(examples=["u-5b7c9d21e0f43a68"])
    """Id of the update."""
    state: UpdateState = Field(examples=["promoted"])
    """How far it is, or how it ended."""
    reason: str | None = Field(examples=["all checks passed"])
    """Why it ended as it did, in a sentence."""
    requested: Time
    """When it was requested."""
    requested_by: str = Field(examples=["schedule"])
    """The key or schedule that requested it."""
    started: Time | None
    """When it began; null before."""
    finished: Time | None
    """When it ended; null before."""
    t: int | None = Field(examples=[12])
    """The period that it closed; null if it closed none."""
    model: str | None = Field(examples=["m00012"])
    """The candidate that it made; null if it made none."""
