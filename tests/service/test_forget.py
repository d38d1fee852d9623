"""Who is forgotten is in no file and no table any more, and stays away."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sqlalchemy import inspect, text
from streams import SMALL, batch_of, know, periods_of, take_in

import fairstream
from fairstream.service.audit import entries, verify
from fairstream.service.event_store import EventStore
from fairstream.service.forget import forget
from fairstream.service.registry import in_service, models
from fairstream.service.schema import PEOPLE
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
PERIODS, USERS = periods_of()
PERSON = "erika.mustermann@example.org"


def renamed(table: pa.Table) -> pa.Table:
    """The busiest user under a name that is found wherever it stands."""
    name = pc.if_else(pc.equal(table["user_id"], _BUSIEST), PERSON, table["user_id"])
    return table.set_column(table.column_names.index("user_id"), "user_id", name)


_COUNTS = pc.value_counts(pa.concat_tables(PERIODS)["user_id"])
_BUSIEST = max(_COUNTS.to_pylist(), key=lambda each: each["counts"])["values"]


def every_cell(workspace: Workspace) -> list[str]:
    """All that is in any column of any table."""
    found = []
    with workspace.engine.connect() as connection:
        for schema in (None, PEOPLE):
            for table in inspect(connection).get_table_names(schema=schema):
                place = table if schema is None else f"{schema}.{table}"
                found += [repr(row) for row in connection.execute(text(f"SELECT * FROM {place}"))]
    return found


def every_file(workspace: Workspace) -> list[bytes]:
    return [path.read_bytes() for path in workspace.folder.rglob("*") if path.is_file()]


@pytest.fixture
def running(new_workspace: Maker) -> Workspace:
    workspace = new_workspace(**SMALL)
    know(workspace, renamed(USERS))
    for events in PERIODS[:3]:
        take_in(workspace, renamed(events))
        update(workspace)
    return workspace


def test_nothing_of_the_person_is_left_and_the_next_update_does_not_bring_it_back(running: Workspace) -> None:
    assert any(PERSON in cell for cell in every_cell(running))
    if running.engine.dialect.name == "sqlite":
        assert any(PERSON.encode() in content for content in every_file(running))
    before, others = in_service(running.engine), ["u1", "u2", "u3"]
    lists = fairstream.load(running.model_folder(before.model)).recommend(others)
    done = forget(running, PERSON, by="test")
    assert done.n_events > 0
    assert done.had_attribute
    assert set(done.models) == {row.id for row in models(running.engine)}
    assert in_service(running.engine).model == before.model
    assert in_service(running.engine).since > before.since
    assert fairstream.load(running.model_folder(before.model)).recommend(others) == lists

    take_in(running, renamed(PERIODS[1]))  # the stream is replayed …
    take_in(running, renamed(PERIODS[3]))  # … and goes on
    outcome = update(running)
    assert outcome.kind in ("promoted", "held")
    for part in (cell.encode() for cell in every_cell(running)):
        assert PERSON.encode() not in part
    for content in every_file(running):
        assert PERSON.encode() not in content
    assert [entry.kind for entry in entries(running.engine)][-3:-1] == ["forget", "forgotten"]
    verify(running.engine)


def test_whoever_comes_back_later_is_somebody_new(running: Workspace) -> None:
    forget(running, PERSON, by="test")
    store = EventStore(running)
    old = batch_of(running, pa.table({"user_id": [PERSON], "item_id": ["i1"], "time": [1_700_000_000]}))
    assert store.append(old) == (0, 0, 1)
    new = batch_of(running, pa.table({"user_id": [PERSON], "item_id": ["i1"], "time": [time.time() + 5]}))
    assert store.append(new).accepted == 1


def test_forgetting_somebody_unknown_or_twice_does_no_harm(running: Workspace) -> None:
    forget(running, PERSON, by="test")
    for user in ("nobody", PERSON):
        done = forget(running, user, by="test")
        assert (done.n_events, done.had_attribute, done.models) == (0, False, ())
