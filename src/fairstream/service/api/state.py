"""What the routes of one service share."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairstream.errors import WorkspaceError
from fairstream.service.api.auth import Keys
from fairstream.service.api.follower import Follower
from fairstream.service.api.limits import Bodies
from fairstream.service.api.logs import Logs
from fairstream.service.api.metrics import Metrics
from fairstream.service.api.updates import Updates
from fairstream.service.api.writer import Writer
from fairstream.service.dashboard import Health
from fairstream.service.database import now
from fairstream.service.event_store import EventStore
from fairstream.service.records import from_microseconds
from fairstream.service.serving import Answer, Serving
from fairstream.service.workspace import Workspace

_BODIES_AT_ONCE = 4


@dataclass(frozen=True, eq=False)
class Service:
    """A running service's parts."""

    workspace: Workspace
    store: EventStore
    logs: Logs
    metrics: Metrics
    keys: Keys
    bodies: Bodies
    serving: Serving
    follower: Follower
    writer: Writer
    updates: Updates
    started: int = field(default_factory=now)

    @classmethod
    def of(cls, workspace: Workspace) -> Service:
        limits = workspace.config.limits
        store, logs, metrics = EventStore(workspace), Logs(), Metrics()
        serving = Serving()
        return cls(
            workspace,
            store,
            logs,
            metrics,
            Keys(workspace.engine, limits.requests_per_second),
            Bodies(_BODIES_AT_ONCE * limits.max_body_bytes),
            serving,
            Follower(workspace, store, serving),
            Writer(store, serving, logs, limits.max_open_events),
            Updates(workspace, logs, metrics),
        )

    def start(self) -> None:
        self.logs.start()
        self.follower.start()
        self.writer.start()

    def stop(self) -> None:
        self.writer.stop()
        self.follower.stop()
        self.logs.stop()
        self.workspace.close()

    @property
    def is_ready(self) -> bool:
        """Whether lists can be made and the database can be reached."""
        return self.serving.status().ready and self.follower.is_reachable

    def health(self) -> Health:
        """How this process does, for the dashboard."""
        route = self.metrics.latency.get(RECOMMENDATIONS)
        return Health(
            started=from_microseconds(self.started),
            n_requests=self.metrics.n_requests,
            n_errors=self.metrics.n_errors,
            p50_seconds=route.quantile(0.5) if route else None,
            p99_seconds=route.quantile(0.99) if route else None,
            problem=self.serving.status().problem,
        )

    def recommend(self, user_id: str, k: int) -> Answer:
        """A user's list, as everybody gets it."""
        return self.serving.recommend(user_id, k)

    async def start_update(self, by: str) -> None:
        """Start an update; raises a `WorkspaceError` where one runs already."""
        if not await self.updates.start(by):
            raise WorkspaceError("an update is running already; wait until it has ended")

    @property
    def model(self) -> str | None:
        """The id of the model that answers."""
        return self.serving.status().model


RECOMMENDATIONS = "/v1/users/{user_id}/recommendations"
