"""A service for the pages to belong to, without a server or a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from fairstream.errors import WorkspaceError
from fairstream.service.dashboard.routes import Health
from fairstream.service.lists import Answer, Ask


@dataclass
class Standing:
    """Answers the same list to everybody, and writes down which updates were asked for."""

    problem: str | None = None
    is_updating: bool = False
    started_by: list[str] = field(default_factory=list)

    def health(self) -> Health:
        return Health(
            datetime(2025, 11, 1, tzinfo=UTC),
            4711,
            3,
            0.0021,
            0.0193,
            "popularity" if self.problem else "model",
            self.problem,
        )

    def recommend(self, user_id: str, ask: Ask) -> Answer:
        if self.problem:
            raise WorkspaceError(self.problem)
        items = [f"item {n}" for n in range(ask.k)]
        if ask.where:  # a filter that item 3 alone passes
            items = [item for item in items if item == "item 3"]
        because = [f"thing {n}" if n % 2 else None for n in range(len(items))] if ask.explain else None
        return Answer(items, [1 / (n + 1) for n in range(len(items))], "model", "m", because)

    def seconds_to_wait(self, peer: str) -> int:
        return 0

    async def request_update(self, by: str) -> None:
        if self.is_updating:
            raise WorkspaceError("an update is running already; wait until it has ended")
        self.started_by.append(by)
