"""The bytes of a request that are no data of its body are bounded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from fairstream.service.api.limits import BoundedProtocol
from live_services import PATIENCE_SECONDS, served


async def echo_length(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/unread":  # answered before the body has come, as a request without a key is
        await PlainTextResponse("no", 401)(scope, receive, send)
        return
    n_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        n_bytes, more = n_bytes + len(message["body"]), message.get("more_body", False)
    await PlainTextResponse(str(n_bytes))(scope, receive, send)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    options = {"lifespan": "off", "log_level": "critical", "limit_concurrency": 20}
    with served(echo_length, http=BoundedProtocol, **options) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


def connect(address: tuple[str, int], *sent: bytes) -> socket.socket:
    connection = socket.create_connection(address, PATIENCE_SECONDS)
    for part in sent:
        connection.sendall(part)
    return connection


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    with connection:
        try:
            while part := connection.recv(65_536):
                received += part
        except ConnectionError:
            pass
    return received


GOOD = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
POST = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("part", [b"x" * 65_536, b"X: y\r\n" * 10_000])
def test_an_endless_head_is_refused_and_long_ones_are_not(address: tuple[str, int], part: bytes) -> None:
    n_sent, limit = 0, BoundedProtocol.max_head_bytes
    with connect(address, b"GET / HTTP/1.1\r\nHost: a\r\nX: ") as connection:
        try:
            while n_sent < 100 * limit:
                connection.sendall(part)
                n_sent += len(part)
        except OSError:
            pass
        assert n_sent < 50 * limit  # the rest of it lay in the network's own buffers
    head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: " + b"y" * (limit // 2) + b"\r\n\r\n"
    assert rest(connect(address, head)).startswith(b"HTTP/1.1 200 ")


def test_a_body_may_be_longer_than_a_head_and_come_in_parts(address: tuple[str, int]) -> None:
    body = b"y" * 4 * BoundedProtocol.max_head_bytes
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert rest(connect(address, head, body[:10], body[10:])).endswith(b"%d" % len(body))


CHUNKED = b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def bytes_taken(connection: socket.socket, part: bytes, most: int) -> int:
    """How many bytes of a part that repeats itself a server takes in before it closes the connection."""
    n_sent = 0
    with connection:
        try:
            while n_sent < most:
                connection.sendall(part)
                n_sent += len(part)
        except OSError:
            pass
    return n_sent


@pytest.mark.parametrize("path", [b"/", b"/unread"])
@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"0\r\n", b"X" * 100 + b": " + b"y" * 1000 + b"\r\n"),
        (b"0\r\nX: ", b"y" * 65_536),
        (b"1;", b"x" * 65_536),
        (b"", b"1;" + b"x" * 1000 + b"\r\ny\r\n"),
    ],
    ids=["trailers", "an endless trailer", "an endless extension", "extensions"],
)
def test_what_a_chunked_body_holds_beside_its_data_is_bounded(
    address: tuple[str, int], path: bytes, begin: bytes, part: bytes
) -> None:
    limit = BoundedProtocol.max_head_bytes
    n_sent = bytes_taken(connect(address, CHUNKED % path + begin), part * (65_536 // len(part)), 100 * limit)
    assert n_sent < 50 * limit  # the rest of it lay in the network's own buffers
    assert rest(connect(address, GOOD)).startswith(b"HTTP/1.1 200 ")


def test_a_body_in_many_small_chunks_is_taken_in(address: tuple[str, int]) -> None:
    n_chunks = 2 * BoundedProtocol.max_head_bytes // len(b"1\r\n\r\n")
    body = b"1\r\ny\r\n" * n_chunks + b"0\r\nX: trailer\r\n\r\n"
    head = (CHUNKED % b"/").replace(b"Host: a", b"Host: a\r\nConnection: close")
    assert rest(connect(address, head, body)).endswith(b"%d" % n_chunks)


def test_a_client_that_sends_a_large_body_first_reads_why_it_was_refused(address: tuple[str, int]) -> None:
    body = b"y" * 40 * BoundedProtocol.max_head_bytes
    head = b"POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(address, head, body) as connection:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")
