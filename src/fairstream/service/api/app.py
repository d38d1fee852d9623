"""The application: routes, middleware and background work."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from fairstream.service.api import health, ingest, items, manage, openapi, recommendations
from fairstream.service.api.auth import Authentication
from fairstream.service.api.errors import answer
from fairstream.service.api.limits import BodyLimits
from fairstream.service.api.monitoring import RequestLogging
from fairstream.service.api.service import Service
from fairstream.service.dashboard.routes import Dashboard
from fairstream.service.settings import Every
from fairstream.service.workspace import Workspace

_PARTS = (recommendations, ingest, items, manage, health)
ROUTES = tuple(route for part in _PARTS for route in part.router.routes)
_log = logging.getLogger("fairstream.api")


def create_app(workspace_folder: Path, *, every: str | None = None) -> FastAPI:
    """Return the service of a workspace; `every` overrides the schedule of its configuration."""
    workspace = Workspace.open(workspace_folder, for_requests=True)
    schedule = every or workspace.config.every
    service = Service(workspace, Every.parse(schedule) if schedule else None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            _log.info("service started", extra={"every": schedule})
            yield
        _log.info("service stopped")

    app = FastAPI(
        lifespan=lifespan,
        openapi_url=None,  # `openapi` serves it, and a page without scripts
        redirect_slashes=False,  # a redirect would trust the Host header
        exception_handlers={RequestValidationError: answer, HTTPException: answer},
        middleware=[
            Middleware(RequestLogging, metrics=service.metrics),
            Middleware(Authentication, keys=service.keys, public=health.PUBLIC),
            Middleware(BodyLimits, max_bytes=workspace.config.limits.max_body_bytes),
        ],
    )
    app.state.service = service
    app.router.routes.extend([*ROUTES, *openapi.routes(ROUTES), *Dashboard(workspace, service).routes()])
    return app
