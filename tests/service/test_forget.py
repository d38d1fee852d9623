"""Who is forgotten is in no file and no table any more, and stays away."""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import inspect, select, text
from sqlalchemy.event import listen
from streams import PERSON, batch_of, know, n_pending, named_stream, take_in, values_of
from typer.testing import CliRunner, Result

import fairstream
from fairstream import recommender
from fairstream.cli import app
from fairstream.errors import FairstreamError
from fairstream.service import database, forgetting, schema
from fairstream.service.audit import entries
from fairstream.service.event_store import EventsReceipt, EventStore
from fairstream.service.forgetting import (
    Forgotten,
    apply_forgotten,
    complete_forgetting,
    export,
    forget,
    forgotten_list,
    get_request,
    pending_requests,
    request_forget,
    request_id,
)
from fairstream.service.people import UsersReceipt
from fairstream.service.records import UnknownIdError
from fairstream.service.registry import in_service, model, models
from fairstream.service.status import Status
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

PERIODS, PEOPLE = named_stream()
OTHERS = ["u1", "u2", "u3"]


def every_cell(workspace: Workspace) -> list[str]:
    """All that is in any column of any table."""
    found = [repr(row) for row in values_of(workspace).to_pylist()]
    with workspace.engine.connect() as connection:
        for table in inspect(connection).get_table_names():
            found += [repr(row) for row in connection.execute(text(f"SELECT * FROM {table}"))]
    return found


def every_file(workspace: Workspace) -> list[bytes]:
    return [path.read_bytes() for path in workspace.folder.rglob("*") if path.is_file()]


def is_nowhere(workspace: Workspace, user_id: str) -> bool:
    return not any(user_id in cell for cell in every_cell(workspace)) and not any(
        user_id.encode() in content for content in every_file(workspace)
    )


def lists(workspace: Workspace) -> pa.Table:
    """Of the model in service, to those who stay."""
    current = in_service(workspace.engine)
    assert current is not None
    folder = model(workspace.engine, current.model).folder
    return fairstream.load(workspace.models.path(folder)).recommend(OTHERS)


def cli(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def event(user_id: str, seconds: float, event_id: str = "e1") -> pa.Table:
    return pa.table({"event_id": [event_id], "user_id": [user_id], "item_id": ["i1"], "time": [seconds]})


def test_nothing_of_the_person_is_left_and_the_next_update_does_not_bring_it_back(learned: Workspace) -> None:
    assert not is_nowhere(learned, PERSON)
    before, answers = in_service(learned.engine), lists(learned)
    done = forget(learned, [PERSON], by="test")
    assert done.n_events > 0
    assert done.n_attributes == 1
    assert set(done.models) == {row.id for row in models(learned.engine)}
    after = in_service(learned.engine)
    assert before is not None
    assert after is not None
    assert after == before  # the model is no newer than it was, although its files are
    assert lists(learned) == answers
    assert is_nowhere(learned, PERSON)

    take_in(learned, PERIODS[1])  # the stream is replayed …
    know(learned, PEOPLE)  # … and the users imported again, as every night
    take_in(learned, PERIODS[2])
    assert update(learned).kind in ("promoted", "rejected")
    assert is_nowhere(learned, PERSON)
    assert [entry.kind for entry in entries(learned.engine)][-3:-1] == ["forget", "forgotten"]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of the models that were read whole."""
    folders: list[Path] = []

    def counted(folder: Path, **options: Any) -> Any:
        folders.append(folder)
        return load(folder, **options)

    load = recommender.load
    monkeypatch.setattr(recommender, "load", counted)
    return folders


def test_many_people_are_one_pass(learned: Workspace, loaded: list[Path]) -> None:
    gone = [PERSON, *OTHERS, *(f"u{n}" for n in range(10, 60))]
    done = forget(learned, gone, by="test")
    assert done.n_users == len(gone)
    assert len(loaded) == len(models(learned.engine))
    assert not set(values_of(learned)["user_id"].to_pylist()) & set(gone)
    for row in models(learned.engine):
        known = fairstream.load(learned.models.path(row.folder)).state.user_ids
        assert (known.lookup(gone) < 0).all()


def test_no_model_is_read_or_taken_up_for_an_unknown_id(learned: Workspace, loaded: list[Path]) -> None:
    before = in_service(learned.engine)
    assert forget(learned, ["nobody"], by="test").models == ()
    assert export(learned, "nobody") is None
    assert loaded == []
    assert in_service(learned.engine) == before


def test_values_that_are_no_groups_do_not_get_into_models(learned: Workspace) -> None:
    """Else a model would tell that somebody has a rare value, and more than a hundred values would block forgetting."""
    know(learned, pa.table({"user_id": [f"u{n}" for n in range(150)], "value": [f"rare{n}" for n in range(150)]}))
    assert forget(learned, [PERSON], by="test").models
    for row in models(learned.engine):
        assert "rare" not in (learned.models.path(row.folder) / "manifest.json").read_text()


def test_no_import_of_users_restores_the_attribute_of_a_forgotten_person(learned: Workspace) -> None:
    """Nor after an event that anyone with an ingest key may send."""
    forget(learned, [PERSON], by="test")
    people = pa.table({"user_id": [PERSON, "u1"], "value": ["minority", "minority"]})
    store = EventStore(learned)
    assert store.append(batch_of(learned, event(PERSON, 1_700_000_000))) == EventsReceipt(0, 0, 1)
    assert store.append(batch_of(learned, event(PERSON, time.time() + 5, "e2"))).accepted == 1
    assert learned.people.put(people) == UsersReceipt(1, 1)
    assert learned.people.values_of([PERSON, "u1"]) == {"u1": "minority"}


def test_events_dated_ahead_of_the_clock_do_not_come_back(learned: Workspace) -> None:
    ahead = batch_of(learned, event("zz-4711@example.com", time.time() + 200))  # a clock that is fast
    store = EventStore(learned)
    assert store.append(ahead).accepted == 1
    forget(learned, ["zz-4711@example.com"], by="test")
    assert store.append(ahead) == EventsReceipt(0, 0, 1)
    assert is_nowhere(learned, "zz-4711@example.com")


@pytest.mark.slow
def test_an_unknown_id_is_said_to_be_unknown(learned: Workspace, tmp_path: Path) -> None:
    said = cli("forget", learned.folder, "nosuchuser")
    assert said.exit_code == 4
    assert "nosuchuser is unknown" in said.output
    assert is_nowhere(learned, "nosuchuser")
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{PERSON}\nnosuchuser\n\nu1\n")
    said = cli("forget", learned.folder, "--ids", ids)
    assert said.exit_code == 4
    assert "Forgot 3 user(s)" in said.output
    assert f"{PERSON} is unknown" not in said.output
    assert is_nowhere(learned, PERSON)
    assert cli("forget", learned.folder).exit_code != 0


def test_while_an_update_runs_events_go_at_once_and_the_rest_waits(learned: Workspace) -> None:
    with learned.updating():
        said = cli("forget", learned.folder, PERSON)
    assert said.exit_code == 5
    assert "is being updated" in said.output
    assert EventStore(learned).items_of(PERSON) == []
    n, oldest = pending_requests(learned.engine)
    assert n == 1
    assert oldest is not None
    assert Status.of(learned).n_forgettings_pending == 1
    assert cli("forget", learned.folder, "--pending").exit_code == 0
    assert pending_requests(learned.engine) == (0, None)


def test_a_request_is_done_at_once_and_completed_later(learned: Workspace) -> None:
    assert request_forget(learned, [PERSON, "nosuchuser"], by="test") > 0
    assert n_pending(learned) == 2
    request = request_id(learned, PERSON)
    assert get_request(learned.engine, request).completed is None
    assert EventStore(learned).items_of(PERSON) == []
    assert EventStore(learned).append(batch_of(learned, PERIODS[0])).forgotten > 0
    said = cli("forget", learned.folder, "--pending")
    assert said.exit_code == 0
    assert "Forgot 2 user(s)" in said.output
    assert n_pending(learned) == 0
    assert get_request(learned.engine, request).completed is not None
    assert is_nowhere(learned, PERSON)
    assert "Nothing is pending" in cli("forget", learned.folder, "--pending").output
    with pytest.raises(UnknownIdError, match="no request"):
        get_request(learned.engine, request_id(learned, "u1"))


def test_a_restored_backup_brings_nobody_back(
    learned: Workspace, tmp_path: Path, new_database: Callable[..., str | None]
) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(learned.folder, backup)
    if (address := backup / "database").exists():
        learned.engine.dispose()  # PostgreSQL copies a database that nobody uses
        address.write_text(str(new_database(address.read_text())))
    forget(learned, [PERSON, "nosuchuser"], by="test")
    forget(learned, ["u1"], by="test")  # another line
    log = learned.folder / "forgotten.log"
    assert PERSON not in log.read_text()
    with Workspace.open(backup) as restored:
        assert not is_nowhere(restored, PERSON)
        said = cli("forget", backup, "--forgotten", log)
        assert said.exit_code == 0, said.output
        assert is_nowhere(restored, PERSON)
        assert EventStore(restored).append(batch_of(restored, PERIODS[0])).forgotten > 0
        assert n_pending(restored) == 0
        assert "Nothing is pending" in cli("forget", backup, "--forgotten", learned.folder).output
        for wrong in ("{", "[]", '{"workspace": "x", "forgotten": []}'):
            with pytest.raises(FairstreamError, match="list of forgotten people"):
                apply_forgotten(restored, wrong, by="test")


def test_a_full_disk_leaves_no_half_line(learned: Workspace) -> None:
    forget(learned, ["u1"], by="test")
    log = learned.folder / forgetting.FORGOTTEN_LOG
    before, limits = log.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="space"):
            forgetting._log(learned, "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.read_bytes() == before


def test_who_came_back_since_stays_when_an_old_list_is_applied(learned: Workspace) -> None:
    forget(learned, [PERSON], by="test")
    listed = forgotten_list(learned)
    assert EventStore(learned).append(batch_of(learned, event(PERSON, time.time() + 5))).accepted == 1
    assert apply_forgotten(learned, listed, by="test") == Forgotten(0)
    assert EventStore(learned).items_of(PERSON) == ["i1"]


def test_the_next_update_completes_what_was_requested(learned: Workspace) -> None:
    request_forget(learned, [PERSON], by="test")
    take_in(learned, PERIODS[2])
    assert update(learned).kind in ("promoted", "rejected")
    assert n_pending(learned) == 0
    assert is_nowhere(learned, PERSON)


@pytest.mark.slow
def test_cut_short_anywhere_the_model_in_service_is_whole_and_it_can_be_completed(
    learned: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = lists(learned)
    steps = [
        (forgetting, "_rewrite_models"),
        (type(learned.models), "remove"),
        (forgetting, "_empty_logs"),
    ]
    request_forget(learned, [PERSON], by="test")
    for place, name in steps:
        with monkeypatch.context() as patched:
            patched.setattr(place, name, _cut_short)
            with pytest.raises(KeyboardInterrupt), learned.updating():
                complete_forgetting(learned)
        assert lists(learned) == answers
        assert n_pending(learned) == (0 if name == "_empty_logs" else 1)
    with learned.updating():
        complete_forgetting(learned)
    assert lists(learned) == answers
    assert is_nowhere(learned, PERSON)


def _cut_short(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_damaged_model_blocks_nothing(learned: Workspace) -> None:
    newest, oldest = models(learned.engine)
    for file in learned.models.path(oldest.folder).glob("*.safetensors"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    said = cli("forget", learned.folder, PERSON)
    assert said.exit_code == 0
    assert f"Model {oldest.id} was damaged" in said.output
    assert learned.models.names() == {f"{newest.id}.1"}
    assert is_nowhere(learned, PERSON)


@pytest.mark.sqlite_only
def test_another_reader_does_not_keep_a_request_from_being_completed(
    learned: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_WAIT_SECONDS", 0.2)
    reader = sqlite3.connect(learned.folder / "events.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchone()
    with Workspace.open(learned.folder) as workspace:  # waits as long as it does now
        forget(workspace, [PERSON], by="test")
        assert n_pending(workspace) == 0
    reader.close()


@pytest.mark.sqlite_only
def test_forgetting_takes_as_long_as_the_persons_own_events(learned: Workspace) -> None:
    """Once it rewrote the whole database, and no event came in meanwhile."""
    statements: list[str] = []
    listen(learned.engine, "checkout", lambda raw, *_: raw.set_trace_callback(statements.append))
    assert forget(learned, [PERSON], by="test").n_events > 0
    of_events = [each for each in statements if "FROM events" in each]
    assert any(each.startswith("DELETE") for each in of_events)
    with learned.engine.connect() as connection:
        plans = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {each}").all() for each in of_events]
    assert not [step for plan in plans for step in plan if step.detail.startswith("SCAN events")]
    assert not [each for each in statements if "VACUUM" in each.upper()]


def test_what_is_held_of_a_person_can_be_exported(learned: Workspace) -> None:
    document = json.loads(cli("export", learned.folder, PERSON).output)
    with learned.engine.connect() as connection:
        stored = connection.scalars(select(schema.events.c.event_id).where(schema.events.c.user_id == PERSON)).all()
    assert [each["event_id"] for each in document["events"]] == list(stored)
    assert document["events"][0]["time"].endswith("+00:00")
    assert document["attribute"].keys() == {"community"}
    assert set(document["models"]) == {row.id for row in models(learned.engine)}
    forget(learned, [PERSON], by="test")
    said = cli("export", learned.folder, PERSON)
    assert said.exit_code == 4
    assert "unknown" in said.output
