"""Every event once, in the order of arrival, whatever is sent again and whoever writes beside."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, event, insert, select

from fairstream.errors import WorkspaceError
from fairstream.service.database import writing
from fairstream.service.event_store import EventsReceipt, EventStore
from fairstream.service.incoming import batch_from_json
from fairstream.service.people import digests
from fairstream.service.schema import events, events_of_user, forgotten, of_users, periods
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
fixtures_stay = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

_ids = st.sampled_from(["a", "b", 'c"', "d,e", "ü\u2028", "\\.", "''", "NULL", "0", "日本", " ", "f\\n"])


def batch(workspace: Workspace, rows: list[tuple[str, str, str, float]]) -> pa.Table:
    names = ("event_id", "user_id", "item_id", "time")
    return batch_from_json([dict(zip(names, row, strict=True)) for row in rows], workspace.config.limits)


def stored(store: EventStore) -> list[tuple[Any, ...]]:
    table = store.read(0)
    return list(zip(*(table[name].to_pylist() for name in ("user_id", "item_id", "time")), strict=True))


@pytest.fixture
def workspace(new_workspace: Maker) -> Workspace:
    return new_workspace()


@fixtures_stay
@given(st.lists(st.lists(st.tuples(_ids, _ids, _ids, st.integers(0, 99)), max_size=12), max_size=6))
def test_the_first_event_of_each_id_is_kept_however_they_are_sent(workspace: Workspace, batches: list[Any]) -> None:
    with writing(workspace.engine) as connection:
        connection.execute(delete(events))
    store, first, last = EventStore(workspace), {}, EventStore(workspace).last_seq()
    for rows in batches:
        known = len(first)
        for event_id, *rest in rows:
            first.setdefault(event_id, tuple(rest))
        fresh = len(first) - known
        assert store.append(batch(workspace, rows)) == EventsReceipt(fresh, len(rows) - fresh, 0)
    assert stored(store) == [(user, item, time * 1_000_000) for user, item, time in first.values()]
    for user in {user for user, *_ in first.values()}:
        assert store.items_of(user) == list(dict.fromkeys(item for who, item, _ in first.values() if who == user))
    numbers = store.read(last)["seq"].to_pylist()
    assert numbers == sorted(set(numbers))
    assert store.last_seq() == (numbers[-1] if numbers else 0)


def test_a_part_is_read_by_its_numbers(workspace: Workspace) -> None:
    store = EventStore(workspace)
    store.append(batch(workspace, [(str(n), "u", f"i{n}", n) for n in range(10)]))
    assert store.read(3, 7)["item_id"].to_pylist() == ["i3", "i4", "i5", "i6"]
    assert store.read(8)["item_id"].to_pylist() == ["i8", "i9"]
    columns = {"seq": pa.int64(), "user_id": pa.string(), "item_id": pa.string(), "time": pa.int64()}
    assert store.read(10).schema == store.read(0).schema == pa.schema({**columns, "kind": pa.string()})


def test_what_a_user_has_had_is_known_at_once(workspace: Workspace) -> None:
    store = EventStore(workspace)
    store.append(batch(workspace, [("1", "u", "b", 5), ("2", "v", "c", 1), ("3", "u", "a", 2), ("4", "u", "b", 9)]))
    assert store.items_of("u") == ["b", "a"]
    assert store.items_of("nobody") == []


@pytest.mark.sqlite_only
def test_an_event_that_is_deleted_leaves_its_user_too(workspace: Workspace) -> None:
    store = EventStore(workspace)
    store.append(batch(workspace, [(str(n), f"u{n % 3}", f"i{n}", n) for n in range(12)]))
    with writing(workspace.engine) as connection:
        connection.execute(delete(events).where(events.c.seq.between(2, 7)))
        left = connection.execute(select(events.c.user_id, events.c.seq)).all()
        assert {*connection.execute(select(events_of_user)).all()} == {*left}
    assert store.items_of("u1") == ["i7", "i10"]


@pytest.mark.sqlite_only
def test_a_users_events_are_found_without_reading_all(workspace: Workspace) -> None:
    with workspace.engine.connect() as connection:
        for statement in (select(events), delete(events)):
            theirs = statement.where(of_users(connection.dialect, ["u"]))
            query = theirs.compile(connection, compile_kwargs={"literal_binds": True})
            steps = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}")]
            assert not [step for step in steps if step.startswith("SCAN")], steps


def test_events_after_the_last_closed_period_are_open(workspace: Workspace) -> None:
    store = EventStore(workspace)
    assert store.n_open() == store.last_seq() == 0
    store.append(batch(workspace, [(str(n), "u", "i", n) for n in range(10)]))
    assert store.n_open() == 10
    with writing(workspace.engine) as connection:
        counts = dict.fromkeys(("closed", "n_events", "n_users", "n_late", "latest_time", "held_out", "max_of_user"), 0)
        connection.execute(insert(periods).values(t=0, first_seq=1, last_seq=7, **counts))
    assert store.n_open() == 3


def test_a_stream_sent_again_and_again_is_no_flood(workspace: Workspace) -> None:
    store = EventStore(workspace)
    rows = [(str(n), "u", "i", n) for n in range(100)]
    for _ in range(5):
        store.append(batch(workspace, rows))
    store.append(batch(workspace, [("new", "u", "i", 1)]))
    assert store.n_open() == 101


def test_the_number_of_a_deleted_event_is_not_given_again(workspace: Workspace) -> None:
    store = EventStore(workspace)
    store.append(batch(workspace, [(str(n), "u", "i", n) for n in range(10)]))
    with writing(workspace.engine) as connection:
        connection.execute(delete(events).where(events.c.seq > 5))
    store.append(batch(workspace, [("1", "u", "i", 1), ("new", "u", "i", 1), ("new", "u", "i", 1)]))
    store.append(batch(workspace, [("newer", "u", "i", 1)]))
    assert store.read(5)["seq"].to_pylist() == [11, 12]


def test_of_many_events_those_that_are_known_or_there_twice_are_left_out(workspace: Workspace) -> None:
    store = EventStore(workspace)
    store.append(batch(workspace, [(str(n), "u", f"first {n}", n) for n in range(0, 2_000, 100)]))
    rows = [(str(n % 1_500), "u", f"then {n}", n) for n in range(2_000)]
    assert store.append(batch(workspace, rows)) == EventsReceipt(1_485, 515, 0)
    fresh = [n for n in range(1_500) if n % 100]
    assert store.read(0)["item_id"].to_pylist()[20:] == [f"then {n}" for n in fresh]


def test_several_batches_of_one_transaction_know_of_each_other(workspace: Workspace) -> None:
    store = EventStore(workspace)
    one, two = ([(f"{n}", f"{part}", "i", n) for n in range(*ends)] for part, ends in (("a", (0, 6)), ("b", (3, 9))))
    assert store.append_all([batch(workspace, one), batch(workspace, two)]) == [
        EventsReceipt(6, 0, 0),
        EventsReceipt(3, 3, 0),
    ]
    assert [user for user, *_ in stored(store)] == ["a"] * 6 + ["b"] * 3


def test_a_replay_does_not_bring_back_who_was_forgotten(workspace: Workspace) -> None:
    store = EventStore(workspace)
    (digest,) = digests(workspace.secret, ["gone"])
    with writing(workspace.engine) as connection:
        connection.execute(insert(forgotten).values(digest=digest, until=5_000_000, requested=0))
    rows = [("1", "gone", "i", 4), ("2", "stays", "i", 4), ("3", "gone", "i", 5), ("4", "gone", "back", 6)]
    assert store.append(batch(workspace, rows)) == EventsReceipt(2, 0, 2)
    assert stored(store) == [("stays", "i", 4_000_000), ("gone", "back", 6_000_000)]


def test_many_writers_lose_nothing_and_store_nothing_twice(workspace: Workspace) -> None:
    store = EventStore(workspace)

    def write(writer: int) -> int:
        accepted = 0
        for part in range(10):
            # Each in another order: were they not to wait for each other, two would wait for one another.
            rows = [(f"{part} {n}", f"u{n}", "i", n) for n in range(50)]
            accepted += store.append(batch(workspace, rows[writer * 10 :] + rows[: writer * 10])).accepted
        return accepted

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) == 500
    assert len(stored(store)) == store.n_open() == 500


@pytest.mark.slow
def test_an_event_seen_has_all_the_earlier_ones_before_it(workspace: Workspace) -> None:
    store = EventStore(workspace)

    def write(writer: int) -> None:
        for part in range(15):
            store.append(batch(workspace, [(f"{writer} {part} {n}", "u", "i", n) for n in range(20)]))

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(write, writer) for writer in range(3)]
        seen: list[tuple[int, pa.Table]] = []
        while not all(job.done() for job in jobs):
            cut = store.last_seq()
            seen.append((cut, store.read(0, cut)))
        for job in jobs:
            job.result()
    assert all(before.equals(store.read(0, cut)) for cut, before in seen)


def test_a_full_disk_or_a_lost_server_is_one_sentence_and_nothing_is_stored(workspace: Workspace) -> None:
    store = EventStore(workspace)
    store.append(batch(workspace, [("0", "u", "i", 1)]))

    @event.listens_for(workspace.engine, "begin")
    def _break(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA max_page_count = 1")  # it has more already: no room is left
        else:
            with psycopg.connect(workspace.engine.url.set(drivername="postgresql").render_as_string(False)) as other:
                mine = connection.connection.driver_connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (mine,))

    with pytest.raises(WorkspaceError, match="cannot be used") as told:
        store.append(batch(workspace, [(str(n), "u" * 200, "i", 1) for n in range(1000)]))
    assert "\n" not in str(told.value)
    event.remove(workspace.engine, "begin", _break)
    assert len(stored(store)) == 1
