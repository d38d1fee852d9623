"""A service for the pages to belong to, without a server or a model, and a client of the pages."""

from __future__ import annotations

import asyncio
import html
import re
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Cookies, Response
from starlette.routing import Mount

from fairstream.errors import WorkspaceError
from fairstream.service.dashboard.routes import Dashboard, Health
from fairstream.service.keys import make_key
from fairstream.service.lists import Answer, Ask
from fairstream.service.workspace import Workspace


@dataclass
class Standing:
    """Answers the same list to everybody, and writes down which updates were asked for."""

    problem: str | None = None
    is_updating: bool = False
    started_by: list[str] = field(default_factory=list)

    def health(self) -> Health:
        return Health("popularity" if self.problem else "model", self.problem)

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


class Client:
    """A browser's requests, one at a time."""

    def __init__(
        self, workspace: Workspace, standing: Standing | None = None, *, https: bool = False, root: str = ""
    ) -> None:
        app = FastAPI()
        app.router.routes.extend(Dashboard(workspace, standing or Standing()).routes())
        shops = FastAPI(routes=[Mount(root, app)]) if root else app
        self._client = AsyncClient(
            transport=ASGITransport(shops), base_url=f"http{'s' if https else ''}://fairstream.test"
        )

    @property
    def cookies(self) -> Cookies:
        return self._client.cookies

    def get(self, path: str, **options: Any) -> Response:
        return asyncio.run(self._client.get(path, **options))

    def post(self, path: str, **options: Any) -> Response:
        return asyncio.run(self._client.post(path, **options))

    def press(self, path: str, fields: dict[str, str] | None = None, **options: Any) -> Response:
        """Press a button as the page has it, with its token, and confirm it as the next page asks."""
        (token, *_) = re.findall(r'name="token" value="([^"]+)"', self.get("/").text)
        asked = self.post(path, data={"token": token, **(fields or {})}, **options)
        if asked.status_code != 200:
            return asked
        [form] = re.findall(rf'<form method="post" action="{re.escape(path)}".*?</form>', asked.text, re.DOTALL)
        confirmed = {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
        return self.post(path, data=confirmed, **options)


def signed_in(workspace: Workspace, scope: str = "read", standing: Standing | None = None) -> Client:
    client = Client(workspace, standing)
    assert sign_in(client, make_key(workspace.engine, f"my {scope}", scope)).status_code == 303
    return client


def sign_in(client: Client, key: str, **more: str) -> Response:
    return client.post("/login", data={"key": key, **more})
