"""Lists for the commonest request: cached ones at once, missing ones in batches of concurrent requests."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from typing import NamedTuple

from fairstream.errors import FairstreamError
from fairstream.service.serving import Serving

_BATCH_SIZE = 64


class _Request(NamedTuple):
    user_id: str
    k: int
    body: asyncio.Future[bytes]


class RequestBatcher:
    """Answers from the cache, and has a thread make missing lists for all waiting requests in one batch.

    While the thread is busy requests add up, and the next batch has them all: sixteen lists take little longer than
    one. A request never joins a batch that is being made already: that may not know of its user's last event.

    Parameters
    ----------
    serving
        What answers.
    threads
        Where lists are made, one batch at a time.

    """

    def __init__(self, serving: Serving, threads: Executor) -> None:
        self._serving, self._threads = serving, threads
        self._waiting: list[_Request] = []
        self._task: asyncio.Task[None] | None = None

    async def json(self, user_id: str, k: int) -> bytes:
        """A user's k best items as JSON; raises what making the list raises."""
        body = self._serving.cached_json(user_id, k)
        if body is not None:
            return body
        request = _Request(user_id, k, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._make_batches())
        return await request.body

    async def _make_batches(self) -> None:
        loop, results = asyncio.get_running_loop(), list[bytes | Exception]()
        try:
            while self._waiting:
                requests, self._waiting = self._waiting[:_BATCH_SIZE], self._waiting[_BATCH_SIZE:]
                try:
                    results = await loop.run_in_executor(self._threads, self._make_batch, requests)
                except Exception as error:  # the threads have ended
                    results = [error] * len(requests)
                for request, result in zip(requests, results, strict=True):
                    if request.body.done():  # whoever waited has gone
                        continue
                    if isinstance(result, bytes):
                        request.body.set_result(result)
                    else:
                        request.body.set_exception(result)
        finally:
            self._task = None

    def _make_batch(self, requests: list[_Request]) -> list[bytes | Exception]:
        """The answers, or why there is none; what is wrong with one list spoils no other."""
        try:
            current = self._serving.current
            with suppress(FairstreamError):
                current.make_lists([request.user_id for request in requests], max(request.k for request in requests))
        except Exception as error:
            return [error] * len(requests)
        results: list[bytes | Exception] = []
        for request in requests:
            try:
                results.append(current.json(request.user_id, request.k))
            except Exception as error:
                results.append(error)
        return results
