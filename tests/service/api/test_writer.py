"""Storing events: a receipt for what is on disk, and only for that."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from fairstream.service import database
from fairstream.service.api.batching import Writer
from fairstream.service.api.errors import ApiError
from fairstream.service.database import writing
from fairstream.service.event_store import EventsReceipt, EventStore, close_by_key
from fairstream.service.forgetting import forget
from fairstream.service.incoming import batch_from_json
from fairstream.service.keys import make_key
from fairstream.service.lists import Ask
from fairstream.service.ranking import popularity_of
from fairstream.service.serving import Serving
from fairstream.service.serving_model import ServingModel
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS, outage

Made = tuple[Writer, EventStore, Workspace, list[pa.Table]]
Maker = Callable[..., Made]


@pytest.fixture
def new_writer(new_workspace: Callable[..., Workspace]) -> Maker:
    def make(max_open: int = 10**6) -> Made:
        workspace, handed_on = new_workspace(), list[pa.Table]()
        store = EventStore(workspace)
        return Writer(store, handed_on.append, limits_of(max_open)), store, workspace, handed_on

    return make


def limits_of(max_open: int) -> Limits:
    return Limits().model_copy(update={"max_open_events": max_open})


def batch(workspace: Workspace, *events: dict[str, Any]) -> pa.Table:
    return batch_from_json(
        [{"user_id": "u", "item_id": "i", "time": 1, **event} for event in events], workspace.config.limits
    )


def store_all(writer: Writer, batches: list[pa.Table]) -> list[EventsReceipt | BaseException]:
    """Store batches that wait together, then end the writer."""

    async def ask() -> list[EventsReceipt | BaseException]:
        results = await asyncio.gather(*map(writer.store, batches), return_exceptions=True)
        await writer.stop()
        return results

    return asyncio.run(asyncio.wait_for(ask(), PATIENCE_SECONDS))


def status_of(result: EventsReceipt | BaseException) -> int:
    assert isinstance(result, ApiError)
    return result.status_code


def test_batches_that_wait_together_each_get_their_own_receipt(new_writer: Maker) -> None:
    writer, store, workspace, handed_on = new_writer()
    batches = [
        batch(workspace, *({"user_id": f"u{n}", "event_id": str((7 * n + m) % 50)} for m in range(n % 6)))
        for n in range(60)
    ]
    seen: set[str] = set()
    for each, receipt in zip(batches, store_all(writer, batches), strict=True):
        ids = set(each["event_id"].to_pylist())
        assert receipt == EventsReceipt(len(ids - seen), len(ids & seen), 0)
        seen |= ids
    assert sum(map(len, handed_on)) == len(seen) <= store.last_seq()


def test_more_than_can_wait_is_refused_and_what_was_accepted_is_stored(new_writer: Maker) -> None:
    writer, store, workspace, _ = new_writer(max_open=300)
    batches = [batch(workspace, {"time": n}) for n in range(400)]
    results = store_all(writer, batches)
    assert results[:256] == [EventsReceipt(1, 0, 0)] * 256
    assert {*map(status_of, results[256:])} == {503}
    assert store.n_open() == 256


def test_what_the_limit_on_open_events_has_no_room_for_is_refused(new_writer: Maker) -> None:
    writer, store, workspace, handed_on = new_writer(max_open=3)
    batches = [batch(workspace, *({"time": 10 * n + m} for m in range(size))) for n, size in enumerate((2, 2, 1))]
    first, second, third = store_all(writer, batches)
    assert (first, third) == (EventsReceipt(2, 0, 0), EventsReceipt(1, 0, 0))
    assert status_of(second) == 503
    assert store.n_open() == sum(map(len, handed_on)) == 3


@pytest.mark.parametrize(
    ("why", "status"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 507),
        (OSError(errno.EROFS, "Read-only file system"), 503),
        (MemoryError(), 503),
        (RuntimeError("anything"), 500),
    ],
)
def test_what_the_database_does_not_accept_is_refused_with_its_cause_and_spoils_it_for_no_other(
    new_writer: Maker, monkeypatch: pytest.MonkeyPatch, why: Exception, status: int
) -> None:
    writer, store, workspace, _ = new_writer()
    append_all = store.append_all

    def failing(batches: list[pa.Table], keys: list[None]) -> list[EventsReceipt]:
        if any("bad" in each["item_id"].to_pylist() for each in batches):
            raise why
        return append_all(batches, keys)

    monkeypatch.setattr(store, "append_all", failing)
    good, bad = batch(workspace, {"item_id": "good"}), batch(workspace, {"item_id": "bad"})
    first, refused, third = store_all(writer, [good, bad, good])
    assert first == EventsReceipt(1, 0, 0)
    assert third == EventsReceipt(0, 1, 0)
    assert status_of(refused) == status


def test_an_exception_after_the_commit_loses_no_receipt(new_writer: Maker) -> None:
    _, store, workspace, _ = new_writer()

    def broken(_: pa.Table) -> None:
        raise RuntimeError("the list could not be made")

    writer = Writer(store, broken, limits_of(1000))

    async def run() -> None:
        for n in range(3):
            assert (await writer.store(batch(workspace, {"time": n}))).accepted == 1
        await writer.stop()

    asyncio.run(run())


def test_a_database_that_is_away_is_a_refusal_and_the_writer_goes_on(new_writer: Maker) -> None:
    writer, store, workspace, _ = new_writer()

    async def run() -> None:
        with outage(workspace.engine), pytest.raises(ApiError) as refused:
            await writer.store(batch(workspace, {}))
        assert refused.value.status_code == 503
        assert writer.problem is refused.value
        assert (await writer.store(batch(workspace, {}))).accepted == 1
        assert writer.problem is None
        await writer.stop()

    asyncio.run(run())
    assert store.last_seq() == 1


def test_what_was_accepted_is_stored_although_nobody_waits_for_it(new_writer: Maker) -> None:
    writer, store, workspace, _ = new_writer()

    async def run() -> None:
        tasks = [asyncio.create_task(writer.store(batch(workspace, {"time": n}))) for n in range(3)]
        await asyncio.sleep(0)
        assert writer.seconds_waiting() > 0
        tasks[1].cancel()
        await writer.stop()
        assert writer.seconds_waiting() == 0
        assert [tasks[0].result().accepted, tasks[2].result().accepted] == [1, 1]

    asyncio.run(run())
    assert store.last_seq() == 3


@pytest.mark.sqlite_only  # of PostgreSQL test_hanging_database.py tells
def test_batches_that_wait_for_a_locked_database_are_refused_together(
    new_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_WAIT_SECONDS", 0.1)
    with Workspace.open(new_workspace().folder) as workspace:
        store, n_waits = EventStore(workspace), 0
        append_all = store.append_all

        def counted(batches: list[pa.Table], keys: list[None]) -> list[EventsReceipt]:
            nonlocal n_waits
            n_waits += 1
            return append_all(batches, keys)

        monkeypatch.setattr(store, "append_all", counted)
        writer = Writer(store, lambda _: None, limits_of(1000))
        batches = [batch(workspace, {"time": n}) for n in range(20)]
        with closing(sqlite3.connect(workspace.folder / "events.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for result in store_all(writer, batches):
                assert "locked" in str(result)
        assert n_waits == 1
        assert store_all(Writer(store, lambda _: None, limits_of(1000)), batches[:1]) == [EventsReceipt(1, 0, 0)]


def test_only_what_was_stored_is_handed_on(new_writer: Maker) -> None:
    writer, store, workspace, handed_on = new_writer()
    store.append(batch(workspace, {"user_id": "gone", "event_id": "1"}, {"event_id": "2", "item_id": "first"}))
    forget(workspace, ["gone"], by="test")
    sent = batch(
        workspace,
        {"user_id": "gone", "event_id": "1"},
        {"event_id": "2", "item_id": "another under the same id"},
        {"event_id": "3", "item_id": "new"},
    )
    assert store_all(writer, [sent]) == [EventsReceipt(1, 1, 1)]
    (events,) = handed_on
    assert (events["user_id"].to_pylist(), events["item_id"].to_pylist()) == (["u"], ["new"])


@pytest.mark.parametrize("n_repeated", [0, 1])
def test_small_batches_that_wait_together_change_lists_at_once(
    new_workspace: Callable[..., Workspace], n_repeated: int
) -> None:
    workspace, serving = new_workspace(), Serving()
    had = [f"i{n}" for n in range(100)]
    events = {"user_id": ["other"] * 101, "item_id": [*had, "new"], "time": list(range(101))}
    serving.use(ServingModel(popularity_of(pa.table(events)), None), "popularity")
    batches = [batch(workspace, *({"user_id": f"u{n}", "item_id": item} for item in had)) for n in range(60)]
    bulk = batch(workspace, *({"user_id": "bulk", "item_id": f"i{n % 100}", "time": n} for n in range(5001)))
    writer = Writer(EventStore(workspace), serving.stored, limits_of(10**6))
    store_all(writer, [*batches, *([] if n_repeated else [bulk]), *batches[:n_repeated]])
    assert {*(tuple(serving.current.recommend(f"u{n}", Ask(100)).items) for n in range(60))} == {("new",)}


def test_of_several_ingest_keys_none_takes_the_room_of_the_others(new_writer: Maker) -> None:
    writer, store, workspace, _ = new_writer(max_open=20)

    def send(*keys: str) -> list[int]:
        """How many events of each batch of six were accepted."""
        batches = [
            (batch(workspace, *({"item_id": f"{at}-{key}-{n}"} for n in range(6))), key) for at, key in enumerate(keys)
        ]

        async def ask() -> list[EventsReceipt | BaseException]:
            return await asyncio.gather(*(writer.store(*each) for each in batches), return_exceptions=True)

        results = asyncio.run(asyncio.wait_for(ask(), PATIENCE_SECONDS))
        assert all(status_of(each) == 503 for each in results if not isinstance(each, EventsReceipt))
        return [each.accepted if isinstance(each, EventsReceipt) else 0 for each in results]

    make_key(workspace.engine, "a", "ingest")
    assert send("a", "a") == [6, 6]  # a single key may use all of it
    make_key(workspace.engine, "b", "ingest")
    writer._counted = float("-inf")
    assert send("a", "b", "b") == [0, 6, 0]
    assert store.open_by_key() == ({"a": 12, "b": 6}, 2)
    with writing(workspace.engine) as connection:  # an update has closed what there was before the last batch
        close_by_key(connection, {"a": 12, "b": 5})
    assert store.open_by_key()[0] == {"a": 0, "b": 1}
