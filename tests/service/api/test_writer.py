"""The thread that stores events: a receipt for what is on disk, and nothing ends it."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from fairstream.service import database
from fairstream.service.api.errors import ApiError
from fairstream.service.api.writer import Writer
from fairstream.service.event_store import EventStore, Receipt
from fairstream.service.forgetting import forget
from fairstream.service.incoming import Batch, batch_from_json
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS, outage

Made = tuple[Writer, EventStore, Workspace, list[pa.Table]]
Maker = Callable[..., Made]


@pytest.fixture
def new_writer(new_workspace: Callable[..., Workspace]) -> Maker:
    def make(max_open: int = 10**6) -> Made:
        workspace, handed_on = new_workspace(), list[pa.Table]()
        store = EventStore(workspace)
        return Writer(store, handed_on.append, max_open), store, workspace, handed_on

    return make


def batch(workspace: Workspace, *events: dict[str, Any]) -> Batch:
    return batch_from_json(
        [{"user_id": "u", "item_id": "i", "time": 1, **event} for event in events], workspace.config.limits
    )


def test_batches_that_wait_together_each_get_their_own_receipt(new_writer: Maker) -> None:
    writer, store, workspace, handed_on = new_writer()
    batches = [
        batch(workspace, *({"user_id": f"u{n}", "event_id": str((7 * n + m) % 50)} for m in range(n % 6)))
        for n in range(60)
    ]
    receipts = [writer.store(each) for each in batches]  # before it runs: they go together
    writer.start()
    seen: set[str] = set()
    for each, receipt in zip(batches, receipts, strict=True):
        ids = set(each.table["event_id"].to_pylist())
        assert receipt.result(PATIENCE_SECONDS) == (len(ids - seen), len(ids & seen), 0)
        seen |= ids
    writer.stop()
    assert sum(map(len, handed_on)) == len(seen) <= store.last_seq()


def test_more_than_can_wait_is_refused_and_what_was_accepted_is_stored(new_writer: Maker) -> None:
    writer, store, workspace, _ = new_writer(max_open=300)
    batches = [batch(workspace, {"time": n}) for n in range(400)]
    receipts = [writer.store(each) for each in batches[:256]]
    with pytest.raises(ApiError) as refused:
        writer.store(batches[256])
    assert refused.value.status_code == 503
    writer.start()
    writer.stop()
    assert all(receipt.result(0) == (1, 0, 0) for receipt in receipts)
    assert store.n_open() == len(receipts) < 300


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

    def failing(batches: list[Batch]) -> list[Receipt]:
        if any("bad" in each.table["item_id"].to_pylist() for each in batches):
            raise why
        return append_all(batches)

    monkeypatch.setattr(store, "append_all", failing)
    good, bad = batch(workspace, {"item_id": "good"}), batch(workspace, {"item_id": "bad"})
    receipts = [writer.store(each) for each in (good, bad, good)]
    writer.start()
    writer.stop()
    assert receipts[0].result(0).accepted == 1
    assert receipts[2].result(0).repeated == 1
    with pytest.raises(ApiError) as refused:
        receipts[1].result(0)
    assert refused.value.status_code == status


def test_an_exception_after_the_commit_neither_ends_the_thread_nor_loses_the_receipt(new_writer: Maker) -> None:
    _, store, workspace, _ = new_writer()

    def broken(_: pa.Table) -> None:
        raise RuntimeError("the list could not be made")

    writer = Writer(store, broken, 1000)
    writer.start()
    for n in range(3):
        assert writer.store(batch(workspace, {"time": n})).result(PATIENCE_SECONDS).accepted == 1
    assert writer.is_alive
    writer.stop()


def test_a_database_that_is_away_is_a_refusal_and_the_writer_goes_on(new_writer: Maker) -> None:
    writer, store, workspace, _ = new_writer()
    writer.start()
    with outage(workspace.engine), pytest.raises(ApiError) as refused:
        writer.store(batch(workspace, {})).result(PATIENCE_SECONDS)
    assert refused.value.status_code == 503
    assert writer.problem is refused.value
    assert writer.store(batch(workspace, {})).result(PATIENCE_SECONDS).accepted == 1
    assert writer.problem is None
    writer.stop()
    assert store.last_seq() == 1


@pytest.mark.sqlite_only  # of PostgreSQL test_hanging_database.py tells
def test_batches_that_wait_for_a_locked_database_are_refused_together(
    new_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_WAIT_SECONDS", 0.1)
    with Workspace.open(new_workspace().folder) as workspace:
        store, n_waits = EventStore(workspace), 0
        append_all = store.append_all

        def counted(batches: list[Batch]) -> list[Receipt]:
            nonlocal n_waits
            n_waits += 1
            return append_all(batches)

        monkeypatch.setattr(store, "append_all", counted)
        writer = Writer(store, lambda _: None, 1000)
        receipts = [writer.store(batch(workspace, {"time": n})) for n in range(20)]
        with closing(sqlite3.connect(workspace.folder / "events.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writer.start()
            for receipt in receipts:
                with pytest.raises(ApiError, match="locked"):
                    receipt.result(PATIENCE_SECONDS)
        assert n_waits == 1
        assert writer.store(batch(workspace, {})).result(PATIENCE_SECONDS).accepted == 1
        writer.stop()


def test_only_what_was_stored_is_handed_on(new_writer: Maker) -> None:
    writer, store, workspace, handed_on = new_writer()
    store.append(batch(workspace, {"user_id": "gone", "event_id": "1"}, {"event_id": "2", "item_id": "first"}))
    forget(workspace, ["gone"], by="test")
    writer.start()
    sent = batch(
        workspace,
        {"user_id": "gone", "event_id": "1"},
        {"event_id": "2", "item_id": "another under the same id"},
        {"event_id": "3", "item_id": "new"},
    )
    assert writer.store(sent).result(PATIENCE_SECONDS) == (1, 1, 1)
    writer.stop()
    (events,) = handed_on
    assert (events["user_id"].to_pylist(), events["item_id"].to_pylist()) == (["u"], ["new"])
