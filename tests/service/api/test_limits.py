"""Requests that never end are cut off, and keep nobody out."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from fairstream.service.api.limits import Deadlines
from live_services import PATIENCE_SECONDS, served, wait_until


class Impatient(Deadlines):
    head_seconds = 0.3
    idle_seconds = 0.3
    body_seconds = 1.0


class Patient(Deadlines):
    """Cuts nobody off: how long a busy machine takes to send a request decides nothing."""

    head_seconds = idle_seconds = body_seconds = PATIENCE_SECONDS


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
def impatient() -> Iterator[tuple[str, int]]:
    yield from address_of(Impatient)


@pytest.fixture(scope="module")
def patient() -> Iterator[tuple[str, int]]:
    yield from address_of(Patient)


def address_of(protocol: type[Deadlines]) -> Iterator[tuple[str, int]]:
    options = {"lifespan": "off", "log_level": "critical", "limit_concurrency": 20}
    with served(echo_length, http=protocol, **options) as url:
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


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nX: ",  # the second one on its connection
        POST % b"/" + b"x",
        POST % b"/unread" + b"x",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx",
    ],
)
def test_heads_and_bodies_that_stop_coming_are_cut_off(impatient: tuple[str, int], sent: bytes) -> None:
    answer = rest(connect(impatient, sent))
    assert b"408" in answer or b"401" in answer


def test_a_body_that_drips_for_ever_is_cut_off(impatient: tuple[str, int]) -> None:
    connection = connect(impatient, POST % b"/")
    connection.settimeout(0.1)  # how fast it drips

    def is_cut_off() -> bool:
        try:
            connection.sendall(b"x")
            return bool(connection.recv(100))
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    wait_until(is_cut_off)
    connection.close()


def test_more_unfinished_heads_than_connections_keep_nobody_out(patient: tuple[str, int]) -> None:
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(patient, b"GET / HTTP/1.1\r\nX: "))
        for _ in range(5):
            assert rest(connect(patient, GOOD)).startswith(b"HTTP/1.1 200 ")


def test_a_full_server_closes_the_connection_that_has_waited_longest() -> None:
    request, answer = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", b"HTTP/1.1 200 "
    options = {"lifespan": "off", "log_level": "critical", "limit_concurrency": 4}
    with served(echo_length, http=Patient, **options) as url, ExitStack() as stack:
        address, waiting = ("127.0.0.1", int(url.rpartition(":")[2])), list[socket.socket]()
        for _ in range(4):  # one after the other, each of them answered; the last one needs room
            waiting.append(stack.enter_context(connect(address, request)))
            assert waiting[-1].recv(65_536).startswith(answer)
            time.sleep(0.01)  # the event loop's clock counts milliseconds
        for connection in waiting[1:]:
            connection.sendall(request)
            assert connection.recv(65_536).startswith(answer)
        assert rest(waiting[0]) == b""


@pytest.mark.parametrize("part", [b"x" * 65_536, b"X: y\r\n" * 10_000])
def test_an_endless_head_is_refused_and_long_ones_are_not(patient: tuple[str, int], part: bytes) -> None:
    n_sent, limit = 0, Deadlines.max_head_bytes
    with connect(patient, b"GET / HTTP/1.1\r\nHost: a\r\nX: ") as connection:
        try:
            while n_sent < 100 * limit:
                connection.sendall(part)
                n_sent += len(part)
        except OSError:
            pass
        assert n_sent < 50 * limit  # the rest of it lay in the network's own buffers
    head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: " + b"y" * (limit // 2) + b"\r\n\r\n"
    assert rest(connect(patient, head)).startswith(b"HTTP/1.1 200 ")


def test_a_body_may_be_longer_than_a_head_and_come_in_parts(patient: tuple[str, int]) -> None:
    body = b"y" * 4 * Deadlines.max_head_bytes
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert rest(connect(patient, head, body[:10], body[10:])).endswith(b"%d" % len(body))


@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: b\r\n"])
def test_http_1_1_needs_one_host(patient: tuple[str, int], hosts: bytes) -> None:
    assert rest(connect(patient, b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")).startswith(b"HTTP/1.1 400 ")
    assert rest(connect(patient, b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


def test_an_answer_comes_in_one_piece(patient: tuple[str, int]) -> None:
    with connect(patient, b"GET /unread HTTP/1.1\r\nHost: h\r\n\r\n") as connection:
        received = connection.recv(65_536)
    assert received.startswith(b"HTTP/1.1 401")
    assert received.endswith(b"\r\n\r\nno")


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
    patient: tuple[str, int], path: bytes, begin: bytes, part: bytes
) -> None:
    limit = Deadlines.max_head_bytes
    n_sent = bytes_taken(connect(patient, CHUNKED % path + begin), part * (65_536 // len(part)), 100 * limit)
    assert n_sent < 50 * limit  # the rest of it lay in the network's own buffers
    assert rest(connect(patient, GOOD)).startswith(b"HTTP/1.1 200 ")


def test_a_body_in_many_small_chunks_is_taken_in(patient: tuple[str, int]) -> None:
    n_chunks = 2 * Deadlines.max_head_bytes // len(b"1\r\n\r\n")
    body = b"1\r\ny\r\n" * n_chunks + b"0\r\nX: trailer\r\n\r\n"
    head = (CHUNKED % b"/").replace(b"Host: a", b"Host: a\r\nConnection: close")
    assert rest(connect(patient, head, body)).endswith(b"%d" % n_chunks)


def test_after_an_answer_that_did_not_wait_for_the_body_the_connection_ends(patient: tuple[str, int]) -> None:
    with connect(patient, POST % b"/unread") as connection:  # its body has not begun
        received = b""
        while part := connection.recv(65_536):
            received += part
        assert received.startswith(b"HTTP/1.1 401 ")
        assert received.count(b"HTTP/1.1") == 1
    pipelined = connect(patient, POST % b"/unread", b"x" * 1000 + GOOD)
    assert rest(pipelined).count(b"HTTP/1.1 ") in (1, 2)  # two where the body came before the answer


def test_a_client_that_sends_a_large_body_first_reads_why_it_was_refused(patient: tuple[str, int]) -> None:
    body = b"y" * 40 * Deadlines.max_head_bytes
    head = b"POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert rest(connect(patient, head, body)).startswith(b"HTTP/1.1 401 ")
