"""A request's head has an end: memory does not grow with what is sent before anyone has shown a key."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from fairstream.service.api.heads import MOST_BYTES, BoundedHeads
from live_services import PATIENCE_SECONDS, served


async def answer_after_the_body(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await PlainTextResponse("fine")(scope, receive, send)


@pytest.mark.parametrize("part", [b"x" * 65_536, b"X: y\r\n" * 10_000])
def test_an_endless_head_is_refused(part: bytes) -> None:
    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), PATIENCE_SECONDS)

    with served(answer_after_the_body, http=BoundedHeads, lifespan="off", log_level="critical") as address:
        with connect() as connection:
            n_sent = 0
            try:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
                while n_sent < 100 * MOST_BYTES:
                    connection.sendall(part)
                    n_sent += len(part)
            except OSError:
                pass
            assert n_sent < 50 * MOST_BYTES  # the rest of it lay in the network's own buffers
        for n in (10, MOST_BYTES // 2):
            with connect() as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\nX: " + b"y" * n + b"\r\n\r\n")
                answer = b"".join(iter(lambda connection=connection: connection.recv(65_536), b""))  # type: ignore[misc]
                assert answer.startswith(b"HTTP/1.1 200 ")
        with connect() as connection:  # a body may be longer than a head
            connection.sendall(b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (4 * MOST_BYTES))
            connection.sendall(b"y" * 4 * MOST_BYTES)
            answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 ")
