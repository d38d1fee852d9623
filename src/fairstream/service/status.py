"""How a workspace stands, from its database alone."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from fairstream.service import updates
from fairstream.service.event_store import EventStore
from fairstream.service.periods import closed_periods
from fairstream.service.records import Time, Update
from fairstream.service.registry import in_service, rejections_in_a_row
from fairstream.service.workspace import Workspace


class Status(BaseModel):
    """What answers, how the last update ended, and what waits."""

    model_config = ConfigDict(frozen=True)

    model: str | None
    """The model in service; None: recommendations are by popularity."""
    since: Time | None
    last_update: Update | None
    rejections_in_a_row: int
    n_periods: int
    ndcg: float | None
    """Of the model in service on the last period."""
    largest_gap: float | None
    """Between a group and the rest, as published."""
    n_waiting: int
    """Events that wait for the next update."""
    every: str | None

    @classmethod
    def of(cls, workspace: Workspace) -> Status:
        """Read it."""
        engine, current = workspace.engine, in_service(workspace.engine)
        last, newest = closed_periods(engine, limit=1), updates.listed(engine, limit=1)
        metrics: dict[str, Any] = (last[0].evaluation or {}).get("metrics", {}) if last else {}
        score: dict[str, Any] = next((score for name, score in metrics.items() if name.startswith("ndcg@")), {})
        return cls.model_validate(
            {
                "model": current and current.model,
                "since": current and current.since,
                "last_update": newest[0] if newest else None,
                "rejections_in_a_row": rejections_in_a_row(engine),
                "n_periods": last[0].t + 1 if last else 0,
                "ndcg": score.get("mean"),
                "largest_gap": (score.get("largest_gap") or {}).get("value"),
                "n_waiting": EventStore(workspace).n_open(),
                "every": workspace.config.every,
            }
        )

    def sentences(self) -> list[str]:
        """The same in words."""
        lines = ["No model is in service yet: recommendations are by popularity."]
        if self.model is not None and self.since is not None:
            lines = [f"Model {self.model} is in service since {self.since:%Y-%m-%d %H:%M:%S} UTC."]
        if self.ndcg is not None:
            gap = (
                "" if self.largest_gap is None else f", largest gap between a group and the rest {self.largest_gap:.3f}"
            )
            lines.append(f"On the last of {self.n_periods} periods its NDCG was {self.ndcg:.4f}{gap}.")
        if (done := self.last_update) is not None:
            reason = f": {done.reason}" if done.reason else ""
            lines.append(
                f"Last update {done.id}, requested {done.requested:%Y-%m-%d %H:%M:%S} UTC, {done.state}{reason}."
            )
        if self.rejections_in_a_row:
            lines.append(
                f"{self.rejections_in_a_row} rejected in a row: look at what has changed; `fairstream promote` puts a "
                f"rejected model into service."
            )
        schedule = "on request" if self.every is None else f"every {self.every}"
        lines.append(f"{self.n_waiting:,} events wait for the next update ({schedule}).")
        return lines
