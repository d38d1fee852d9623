"""The audit record: only added to, keyed, and verified to a hash that was noted."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from streams import PERSON, named_stream, take_in
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.audit import Entry, differences, entries, record, verify
from fairstream.service.database import writing
from fairstream.service.forgetting import forget
from fairstream.service.keys import make_key
from fairstream.service.registry import models
from fairstream.service.schema import audit
from fairstream.service.updater import update as update_models
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
PERIODS, _ = named_stream()


def unguard(connection: Connection) -> None:
    """What somebody does first who may do anything in the database."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("DROP TRIGGER audit_guard ON audit"))
        return
    for action in ("update", "delete"):
        connection.execute(text(f"DROP TRIGGER audit_no_{action}"))


def plain_hash(entry: Entry) -> str:
    content = "\n".join((entry.previous, str(entry.seq), str(entry.time), entry.kind, entry.body))
    return hashlib.sha256(content.encode()).hexdigest()


def test_the_record_can_be_added_to_and_nothing_else(new_workspace: Maker) -> None:
    engine = new_workspace().engine
    with writing(engine) as connection:
        record(connection, "test", {"ü": 1.5})
    assert [entry.kind for entry in entries(engine)] == ["init", "test"]
    assert verify(engine) == 2
    for change in (update(audit).values(body="{}"), delete(audit)):
        with pytest.raises(DBAPIError, match="can only be added to"), engine.begin() as connection:
            connection.execute(change)
    assert verify(engine) == 2


def test_a_changed_entry_is_found(new_workspace: Maker) -> None:
    engine = new_workspace().engine
    with writing(engine) as connection:
        record(connection, "test", {})
        unguard(connection)
        connection.execute(update(audit).where(audit.c.seq == 1).values(body='{"nothing":"happened"}'))
    with pytest.raises(WorkspaceError, match="entry 1 does not follow"):
        verify(engine)


def test_an_entry_of_a_copy_of_the_workspace_does_not_fit(new_workspace: Maker) -> None:
    """It has the key and the number of the one that it replaces, but the next one names another before it."""
    engine = new_workspace().engine
    with writing(engine) as connection:
        record(connection, "test", {"of": "the copy"})
        other = dict(connection.execute(select(audit).where(audit.c.seq == 2)).mappings().one())
        connection.rollback()
    for body in ({"of": "the workspace"}, {}):
        with writing(engine) as connection:
            record(connection, "test", body)
    with writing(engine) as connection:
        unguard(connection)
        connection.execute(update(audit).where(audit.c.seq == 2).values(other))
    with pytest.raises(WorkspaceError, match="entry 3 does not follow"):
        verify(engine)


def test_entries_taken_off_the_end_are_found(new_workspace: Maker) -> None:
    workspace = new_workspace()
    for name in "ab":
        make_key(workspace.engine, name, "read")
    noted = list(entries(workspace.engine))[-1].hash
    with writing(workspace.engine) as connection:
        unguard(connection)
        connection.execute(delete(audit).where(audit.c.seq == 3))
    assert verify(workspace.engine) == 2  # only a noted hash tells
    said = CliRunner().invoke(app, ["audit", str(workspace.folder), "--expect", noted])
    assert isinstance(said.exception, WorkspaceError)
    assert "none of its 2 entries has the hash" in str(said.exception)


def test_a_hash_noted_before_is_expected(new_workspace: Maker) -> None:
    workspace = new_workspace()
    noted = list(entries(workspace.engine))[-1].hash
    make_key(workspace.engine, "a", "read")
    assert verify(workspace.engine, noted) == 2


def test_a_record_written_anew_without_the_secret_is_found(new_workspace: Maker) -> None:
    workspace = new_workspace()
    make_key(workspace.engine, "a", "read")
    forged, previous = [], "0" * 64
    for entry in entries(workspace.engine):
        forged.append({**vars(entry), "previous": previous})
        forged[-1]["hash"] = previous = plain_hash(Entry(**forged[-1]))
    with writing(workspace.engine) as connection:
        unguard(connection)
        connection.execute(delete(audit))
        connection.execute(insert(audit), forged)
    with pytest.raises(WorkspaceError, match="entry 1 does not follow"):
        verify(workspace.engine)


def test_a_workspace_that_was_used_as_meant_agrees_with_its_record(learned: Workspace) -> None:
    assert list(differences(learned)) == []
    forget(learned, [PERSON], by="test")
    assert list(differences(learned)) == []
    take_in(learned, PERIODS[2])
    update_models(learned)
    forget(learned, ["u1", "nobody"], by="test")
    assert list(differences(learned)) == []
    said = CliRunner().invoke(app, ["audit", str(learned.folder)])
    assert said.exit_code == 0, said.output


def swap_files(workspace: Workspace) -> None:
    """The model in service answers with the files of another one."""
    newest, oldest = models(workspace.engine)
    with workspace.models.new("other") as folder:
        for file in workspace.models.path(oldest.folder).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    if workspace.engine.dialect.name == "sqlite":
        shutil.rmtree(workspace.folder / "models" / newest.folder)
        (workspace.folder / "models" / "other").rename(workspace.folder / "models" / newest.folder)
        return
    rows = schema.model_files
    with writing(workspace.engine) as connection:
        connection.execute(delete(rows).where(rows.c.folder == newest.folder))
        connection.execute(update(rows).where(rows.c.folder == "other").values(folder=newest.folder))


def point_elsewhere(workspace: Workspace) -> None:
    newest, oldest = models(workspace.engine)
    rows = schema.models
    with writing(workspace.engine) as connection:
        connection.execute(update(rows).where(rows.c.id == newest.id).values(folder=oldest.folder))


def remember(workspace: Workspace) -> None:
    with writing(workspace.engine) as connection:
        connection.execute(delete(schema.forgotten))


def delete_events(workspace: Workspace) -> None:
    with writing(workspace.engine) as connection:
        connection.execute(delete(schema.events).where(schema.events.c.seq % 7 == 0))


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (swap_files, "files of model"),
        (point_elsewhere, "files of model"),
        (remember, "1 people whom the record has as forgotten"),
        (delete_events, "events of closed periods"),
    ],
)
def test_what_was_changed_beside_the_record_is_found(
    learned: Workspace, change: Callable[[Workspace], None], finding: str
) -> None:
    forget(learned, ["u1"], by="test")
    change(learned)
    [found] = differences(learned)
    assert finding in found
    said = CliRunner().invoke(app, ["audit", str(learned.folder)])
    assert isinstance(said.exception, WorkspaceError)
    assert finding in str(said.exception)
