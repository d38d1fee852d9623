"""Lists that several requests wait for are made together, and are those that each would get alone."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from fairstream.service.api.batching import ListBatcher
from fairstream.service.lists import Ask
from fairstream.service.ranking import popularity_of
from fairstream.service.serving import NotReadyError, Serving
from fairstream.service.serving_model import ServingModel

USERS = [f"u{row}" for row in range(200)]


@pytest.fixture
def serving() -> Serving:
    answering = Serving()
    answering.use(
        ServingModel(popularity_of(events(*((user, f"i{row % 50}") for row, user in enumerate(USERS)))), None),
        "popularity",
    )
    return answering


def events(*pairs: tuple[str, str]) -> pa.Table:
    users, items = zip(*pairs, strict=True)
    return pa.table({"user_id": users, "item_id": items, "time": list(range(len(pairs)))})


def together(batcher: ListBatcher, requests: list[tuple[str, Ask]]) -> list[bytes | BaseException]:
    async def ask() -> list[bytes | BaseException]:
        return await asyncio.gather(*(batcher.json(*request) for request in requests), return_exceptions=True)

    return asyncio.run(ask())


def test_everybody_gets_their_own_list_of_their_own_length(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, make = list[int](), serving.current.make_lists
    monkeypatch.setattr(serving.current, "make_lists", lambda users, k: (batches.append(len(users)), make(users, k)))
    with ThreadPoolExecutor(2) as threads:
        requests = [(user, Ask(1 + row % 40)) for row, user in enumerate(USERS)]
        answers = together(ListBatcher(serving, threads), requests)
    assert answers == [serving.current.json(user, ask) for user, ask in requests]
    assert sum(batches) == len(USERS)
    assert max(batches) > 1


def test_one_ranking_serves_short_and_long_lists_of_a_batch(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request misses the cache once, when it arrives: its batch makes lists as long as the longest request."""
    misses, cached_json = list[str](), serving.current.cached_json

    def counted(user: str, k: Ask) -> bytes | None:
        body = cached_json(user, k)
        misses.extend([user] if body is None else [])
        return body

    monkeypatch.setattr(serving.current, "cached_json", counted)
    with ThreadPoolExecutor(1) as threads:
        together(ListBatcher(serving, threads), [("u0", Ask(1)), ("u1", Ask(49))])
    assert misses == ["u0", "u1"]


def test_whatever_one_list_raises_fails_no_other(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    model, make, json_of = serving.current, serving.current.make_lists, serving.current.json

    def fail(users: list[str], k: int) -> None:
        if "u1" in users:
            raise RuntimeError("one of them")
        make(users, k)

    def json(user: str, ask: Ask) -> bytes:
        fail([user], 1)
        return json_of(user, ask)

    with ThreadPoolExecutor(1) as threads, monkeypatch.context() as patched:
        patched.setattr(model, "make_lists", fail)
        patched.setattr(model, "json", json)
        first, second, third = together(ListBatcher(serving, threads), [(f"u{n}", Ask(5)) for n in range(3)])
    assert (first, third) == (serving.current.json("u0", Ask(5)), serving.current.json("u2", Ask(5)))
    assert isinstance(second, RuntimeError)


def test_a_request_after_an_event_gets_a_list_that_knows_of_it_while_an_older_one_is_made(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker, rank = serving.current._ranker, serving.current._ranker.rank
    best = serving.current.recommend("nobody", Ask(1)).items[0]

    async def ask(batcher: ListBatcher) -> bytes:
        loop, later = asyncio.get_running_loop(), list[Any]()

        def overtaken(*arguments: Any) -> Any:
            monkeypatch.undo()
            serving.stored(events(("u1", best)))
            later.append(asyncio.run_coroutine_threadsafe(batcher.json("u1", Ask(5)), loop))
            return rank(*arguments)

        monkeypatch.setattr(ranker, "rank", overtaken)
        await batcher.json("u1", Ask(5))
        return await asyncio.wrap_future(later[0])

    with ThreadPoolExecutor(2) as threads:
        answer = asyncio.run(ask(ListBatcher(serving, threads)))
    assert best not in [item["item_id"] for item in json.loads(answer)["items"]]


def test_who_waits_is_told_when_nothing_can_answer_or_the_threads_have_ended(serving: Serving) -> None:
    threads = ThreadPoolExecutor(2)
    for answer in together(ListBatcher(Serving(), threads), [("u1", Ask(5)), ("u2", Ask(5))]):
        assert isinstance(answer, NotReadyError)
    threads.shutdown()
    for answer in together(ListBatcher(serving, threads), [("u1", Ask(5)), ("u2", Ask(5))]):
        assert isinstance(answer, RuntimeError)


def test_whoever_stops_waiting_keeps_nobody_else_from_a_list(serving: Serving) -> None:
    async def ask(batcher: ListBatcher) -> bytes:
        gone = asyncio.create_task(batcher.json("u1", Ask(5)))
        stays = asyncio.create_task(batcher.json("u2", Ask(5)))
        await asyncio.sleep(0)
        gone.cancel()
        body = await stays
        assert gone.cancelled()
        return body

    with ThreadPoolExecutor(2) as threads:
        assert asyncio.run(ask(ListBatcher(serving, threads))) == serving.current.json("u2", Ask(5))
