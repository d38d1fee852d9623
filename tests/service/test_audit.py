"""The audit record: only added to, keyed, and verified to a hash that was noted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import WorkspaceError
from fairstream.service.audit import Entry, entries, record, verify
from fairstream.service.database import writing
from fairstream.service.keys import make_key
from fairstream.service.schema import audit
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]


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
