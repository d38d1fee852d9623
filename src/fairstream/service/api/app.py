"""The application: its routes, its middlewares, and what runs beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from fairstream._version import __version__
from fairstream.errors import DataError, FairstreamError
from fairstream.service import dashboard
from fairstream.service.api import events, health, periods_models, recommendations
from fairstream.service.api.limits import BodyLimit
from fairstream.service.api.observed import Observed
from fairstream.service.api.routing import Plain
from fairstream.service.api.scheduler import Scheduler
from fairstream.service.api.state import Service
from fairstream.service.settings import Every
from fairstream.service.workspace import Workspace

_OPEN_TO_ALL = ("/healthz", "/readyz")


def create_app(workspace_folder: Path, *, every: str | None = None) -> FastAPI:
    """The service of a workspace; `every` says otherwise than its configuration when to update."""
    workspace = Workspace.open(workspace_folder)
    schedule = every or workspace.config.every
    due = Every.parse(schedule) if schedule else None
    service = Service.of(workspace)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        scheduler = None
        if due is not None:
            beside = Scheduler(workspace, service.store, service.updates, service.logs, due)
            scheduler = asyncio.create_task(beside.run())
        service.logs.say("service started", every=schedule)
        try:
            yield
        finally:
            if scheduler is not None:
                scheduler.cancel()
                with suppress(asyncio.CancelledError):
                    await scheduler
            await service.updates.stop()
            service.logs.say("service stopped")
            await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="fairstream",
        version=__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,  # to wherever the Host header says, with whatever was sent
    )
    app.state.service = service
    # The one that is asked most is looked for first.
    app.router.route_class = Plain
    for part in (recommendations, events, periods_models, health):
        part.add_routes(app.router, service)
    app.router.routes.extend(dashboard.routes(workspace, service))
    _say_in_one_sentence(app)
    app.add_middleware(BodyLimit, max_bytes=workspace.config.limits.max_body_bytes)
    app.add_middleware(Observed, logs=service.logs, metrics=service.metrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _say_in_one_sentence(app: FastAPI) -> None:
    def answer(status: int, sentence: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"detail": sentence}, status, headers)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(DataError)
    async def bad_data(_: Request, error: DataError) -> JSONResponse:
        return answer(422, str(error))

    async def not_now(_: Request, __: Exception) -> JSONResponse:
        return answer(503, "the database cannot be used now; try again in 5 s", {"Retry-After": "5"})

    for kind in (FairstreamError, SQLAlchemyError):
        app.add_exception_handler(kind, not_now)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return answer(422, _first(error.errors()))


def _first(errors: Sequence[Any]) -> str:
    where = " ".join(str(part) for part in errors[0]["loc"])
    return f"{where}: {errors[0]['msg']}"


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's schema, with the keys that it does not know of."""
    if not app.openapi_schema:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in made["paths"].items():
            for operation in operations.values():
                operation["security"] = [] if path in _OPEN_TO_ALL else [{"key": []}]
        app.openapi_schema = made
    return app.openapi_schema
