"""/healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from fairstream.service.api.reading import json_response
from fairstream.service.api.refusals import Refusal, Refused, refusals
from fairstream.service.api.schemas import Health
from fairstream.service.api.state import Service


def add_routes(routes: APIRouter, service: Service) -> None:
    """How the service is: the first two for anyone, the numbers for keys of scope read."""

    @routes.get("/healthz", responses={200: {"model": Health}}, response_class=Response, tags=["health"])
    async def healthz(_: Request) -> Response:
        """The process is alive."""
        return json_response('{"status":"alive"}')

    @routes.get(
        "/readyz",
        responses={200: {"model": Health}, 503: {"model": Refusal, "description": "Not yet, or not now."}},
        response_class=Response,
        tags=["health"],
    )
    async def readyz(_: Request) -> Response:
        """A whole model answers and the database can be reached."""
        if not service.follower.is_reachable:
            raise Refused(503, "the database cannot be reached", retry_after=5)
        if not (status := service.serving.status()).ready:
            raise Refused(503, status.problem or "nothing has been loaded yet", retry_after=5)
        return json_response('{"status":"ready"}')

    @routes.get(
        "/metrics",
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusals()},
        response_class=Response,
        tags=["health"],
    )
    async def metrics(request: Request) -> Response:
        """Numbers in Prometheus's format."""
        await service.keys.admit(request.scope, "read")
        n_open = await asyncio.to_thread(service.store.n_open)
        gauges = {
            "ready": float(service.is_ready),
            "open_events": n_open,
            "batches_waiting": service.writer.n_waiting,
            "updating": float(service.updates.is_running),
        }
        return Response(service.metrics.text(service.model, gauges), media_type=CONTENT_TYPE_LATEST)
