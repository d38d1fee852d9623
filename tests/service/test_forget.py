"""Who is forgotten is in no file and no table any more, and stays away."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from sqlalchemy import inspect, text
from streams import PERSON, batch_of, named_stream, take_in

import fairstream
from fairstream.service.audit import entries, verify
from fairstream.service.event_store import EventStore
from fairstream.service.forget import forget
from fairstream.service.registry import in_service, models
from fairstream.service.schema import PEOPLE
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

pytestmark = pytest.mark.both_databases
PERIODS, _ = named_stream()


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


def test_nothing_of_the_person_is_left_and_the_next_update_does_not_bring_it_back(learned: Workspace) -> None:
    assert any(PERSON in cell for cell in every_cell(learned))
    if learned.engine.dialect.name == "sqlite":
        assert any(PERSON.encode() in content for content in every_file(learned))
    before, others = in_service(learned.engine), ["u1", "u2", "u3"]
    lists = fairstream.load(learned.models.path(before.model)).recommend(others)
    done = forget(learned, PERSON, by="test")
    assert done.n_events > 0
    assert done.had_attribute
    assert set(done.models) == {row.id for row in models(learned.engine)}
    assert in_service(learned.engine).model == before.model
    assert in_service(learned.engine).since > before.since
    assert fairstream.load(learned.models.path(f"{before.model}.1")).recommend(others) == lists

    take_in(learned, PERIODS[1])  # the stream is replayed …
    take_in(learned, PERIODS[2])  # … and goes on
    outcome = update(learned)
    assert outcome.kind in ("promoted", "rejected")
    for part in (cell.encode() for cell in every_cell(learned)):
        assert PERSON.encode() not in part
    for content in every_file(learned):
        assert PERSON.encode() not in content
    assert [entry.kind for entry in entries(learned.engine)][-3:-1] == ["forget", "forgotten"]
    verify(learned.engine)


def test_whoever_comes_back_later_is_somebody_new(learned: Workspace) -> None:
    forget(learned, PERSON, by="test")
    store = EventStore(learned)
    old = batch_of(learned, pa.table({"user_id": [PERSON], "item_id": ["i1"], "time": [1_700_000_000]}))
    assert store.append(old) == (0, 0, 1)
    new = batch_of(learned, pa.table({"user_id": [PERSON], "item_id": ["i1"], "time": [time.time() + 5]}))
    assert store.append(new).accepted == 1


def test_forgetting_somebody_unknown_or_twice_does_no_harm(learned: Workspace) -> None:
    forget(learned, PERSON, by="test")
    for user in ("nobody", PERSON):
        done = forget(learned, user, by="test")
        assert (done.n_events, done.had_attribute, done.models) == (0, False, ())
