"""The application: its routes, its middleware, and what runs beside them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware import Middleware

from fairstream._version import __version__
from fairstream.service import dashboard
from fairstream.service.api import health, ingest, manage, recommendations
from fairstream.service.api.auth import Authentication
from fairstream.service.api.errors import add_exception_handlers
from fairstream.service.api.limits import BodyLimits
from fairstream.service.api.monitoring import RequestLogging, start_logging
from fairstream.service.api.recommendations import ListShortcut
from fairstream.service.api.service import Service
from fairstream.service.settings import Every
from fairstream.service.workspace import Workspace

_log = logging.getLogger("fairstream.api")


def create_app(workspace_folder: Path, *, every: str | None = None, log_level: str = "info") -> FastAPI:
    """The service of a workspace; `every` overrides the schedule of its configuration."""
    workspace = Workspace.open(workspace_folder, for_requests=True)
    schedule = every or workspace.config.every
    service = Service(workspace, Every.parse(schedule) if schedule else None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        logs = start_logging(log_level)
        try:
            async with service.running():
                _log.info("service started", extra={"every": schedule})
                yield
            _log.info("service stopped")
        finally:
            logs.close()

    app = FastAPI(
        title="fairstream",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,  # to wherever the Host header says, with whatever was sent
        middleware=[
            Middleware(RequestLogging, metrics=service.metrics),
            Middleware(Authentication, keys=service.keys, public=health.PUBLIC),
            Middleware(ListShortcut, service=service),
            Middleware(BodyLimits, max_bytes=workspace.config.limits.max_body_bytes),
        ],
    )
    app.state.service = service
    add_exception_handlers(app)
    for part in (recommendations, ingest, manage, health):
        app.include_router(part.router)
    app.router.routes.extend(dashboard.routes(workspace, service))
    return app
