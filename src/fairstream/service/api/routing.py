"""Routes that are handed the request and give the response, and nothing in between."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class Plain(APIRoute):
    """A route whose function reads the request by itself, after it has asked for a key.

    FastAPI would read and check a body before anybody has said who sends it, and takes longer to
    find out that there is nothing to check than a list takes to be made.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint
