"""A client that costs little: raw bytes over connections that are kept, each asking again when it was answered."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np


class Load(NamedTuple):
    """What came of asking for some seconds."""

    rate: float
    """Answers a second."""
    latencies: np.ndarray
    n_failed: int
    models: set[bytes]


class _Connection(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], end: float) -> None:
        self._requests, self._end = requests, end
        self._received, self._begin = b"", 0.0
        self.latencies, self.n_failed, self.models = array("d"), 0, set[bytes]()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # uvloop's is no subclass of asyncio's
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        at = self._received.find(b"content-length: ") + len(b"content-length: ")
        length = int(self._received[at : self._received.index(b"\r", at)])
        if len(self._received) < head_end + 4 + length:
            return
        self._answered(self._received)
        self._received = b""
        if time.perf_counter() < self._end:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if time.perf_counter() < self._end:  # it was not we who ended it
            self.n_failed += 1
        if not self.done.done():
            self.done.set_result(None)

    def _ask(self) -> None:
        self._begin = time.perf_counter()
        self._transport.write(next(self._requests))

    def _answered(self, answer: bytes) -> None:
        self.latencies.append(time.perf_counter() - self._begin)
        self.n_failed += not answer.startswith(b"HTTP/1.1 200")
        at = answer.find(b'"model":"')
        if at >= 0:
            self.models.add(answer[at + 9 : answer.index(b'"', at + 9)])


async def ask(port: int, requests: Iterator[bytes], seconds: float, n_connections: int) -> Load:
    """Ask on so many connections at once for so long; the next call goes on with the requests where this one ended."""
    loop = asyncio.get_running_loop()
    begin = time.perf_counter()
    made = [
        await loop.create_connection(lambda: _Connection(requests, begin + seconds), "127.0.0.1", port)
        for _ in range(n_connections)
    ]
    connections = [connection for _, connection in made]
    await asyncio.wait_for(asyncio.gather(*(connection.done for connection in connections)), seconds + 30)
    latencies = np.concatenate([np.frombuffer(connection.latencies) for connection in connections])
    return Load(
        len(latencies) / (time.perf_counter() - begin),
        latencies,
        sum(connection.n_failed for connection in connections),
        set().union(*(connection.models for connection in connections)),
    )
