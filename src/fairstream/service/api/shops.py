"""Several workspaces in one process: each at /w/NAME/, by the name of its folder; a single one also at /."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from fairstream.errors import ConfigurationError
from fairstream.service.api.app import create_app
from fairstream.service.api.errors import ApiError, cause_of, error_from
from fairstream.service.api.monitoring import SHOP, json_logs
from fairstream.service.settings import FILE

_RETRY_SECONDS = 10.0
_LOADING_SECONDS = 60.0  # a new process takes requests when its models are loaded, or after this
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PATH = re.compile(r"(/w/([^/]+))(/.*)?")
_log = logging.getLogger("fairstream.api")


def workspaces_in(folders: Sequence[Path]) -> list[Path]:
    """Return folders, each replaced by the workspaces inside of it if there are any; raise if two share a name."""
    workspaces: list[Path] = []
    for folder in folders:
        inside = [] if (folder / FILE).is_file() else sorted(path.parent for path in folder.glob(f"*/{FILE}"))
        workspaces += inside or [folder]
    names = [folder.resolve().name for folder in workspaces]
    for name in names if len(names) > 1 else ():
        if names.count(name) > 1 or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"each folder's name becomes part of addresses and must be unique, of at most 64 letters, digits and "
                f"._-, got {name!r}; rename the folder"
            )
    return workspaces


class Shop:
    """A workspace that is opened and served; while that fails, it is tried again."""

    def __init__(self, folder: Path, name: str | None, every: str | None) -> None:
        self._folder, self._name, self._every = folder, name, every
        self.app: FastAPI | None = None
        self.error: Exception | None = None
        self.tried = asyncio.Event()

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve the workspace until `stopping` is set."""
        SHOP.set(self._name)
        while not stopping.is_set():
            try:
                app = await asyncio.to_thread(create_app, self._folder, every=self._every)
                async with app.router.lifespan_context(app):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(_loaded(app), _LOADING_SECONDS)
                    self.app = app
                    self.tried.set()
                    await stopping.wait()
            except Exception as error:
                _log.error("shop cannot be served", extra={"why": cause_of(error)})
                self.app, self.error = None, error
                self.tried.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), _RETRY_SECONDS)


class Shops:
    """The application of one or more workspaces."""

    def __init__(self, folders: Sequence[Path], *, every: str | None = None, log_level: str = "info") -> None:
        self._log_level = log_level
        self._router = Router(lifespan=self._lifespan)
        is_alone = len(folders) == 1
        self._shops = {(name := path.resolve().name): Shop(path, None if is_alone else name, every) for path in folders}
        self._only = next(iter(self._shops.values())) if is_alone else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._router.lifespan(scope, receive, send)
            return
        shop, path = self._only, scope["path"]
        if (match := _PATH.fullmatch(path)) is not None and match[2] in self._shops:
            shop = self._shops[match[2]]
            scope["root_path"], scope["path"] = match[1], match[1] + (match[3] or "/")
            SHOP.set(match[2] if self._only is None else None)
        if shop is not None and shop.app is not None:
            await shop.app(scope, receive, send)
        else:
            await self._answer(shop, path)(scope, receive, send)

    def _answer(self, shop: Shop | None, path: str) -> Response:
        """Answer for a shop that is not open, and for all shops together."""
        if shop is not None:
            state = "is starting" if shop.error is None else f"cannot be opened ({error_from(shop.error).code})"
            return ApiError("not_ready", f"This shop {state}; see the service log.").response()
        if path == "/healthz":
            return JSONResponse({"status": "alive"})
        if path == "/readyz":
            apps = [shop.app for shop in self._shops.values()]
            n_ready = sum(app is not None and app.state.service.serving.status().ready for app in apps)
            status = "ready" if n_ready == len(apps) else "degraded" if n_ready else "unavailable"
            problems = [] if status == "ready" else [f"{n_ready} of {len(apps)} shops can make lists."]
            return JSONResponse({"status": status, "problems": problems}, 200 if n_ready else 503)
        return ApiError("not_found", "Each shop is at /w/NAME/, by the name of its folder.").response()

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        stopping, shops = asyncio.Event(), self._shops.values()
        with json_logs(self._log_level):
            tasks = [asyncio.create_task(shop.run(stopping)) for shop in shops]
            try:
                await asyncio.gather(*(shop.tried.wait() for shop in shops))
                if self._only is not None and self._only.error is not None:
                    raise self._only.error
                yield
            finally:
                stopping.set()
                await asyncio.gather(*tasks)


async def _loaded(app: FastAPI) -> None:
    while not app.state.service.serving.status().ready:
        await asyncio.sleep(0.05)
