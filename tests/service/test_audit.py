"""The audit record: only added to, keyed, whole to its end, and the same as the tables say."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.audit import Entry, entries, record, verify
from fairstream.service.database import EVENTS_FILE, connect, upgrade, writing
from fairstream.service.keys import make_key, revoke_key
from fairstream.service.registry import rollback
from fairstream.service.schema import audit
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
NewDatabase = Callable[..., str | None]


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
        connection.execute(delete(schema.keys).where(schema.keys.c.name == "b"))  # so that the tables say the same
    with pytest.raises(WorkspaceError, match=r"entry 3, which .*audit-head names, is not in it; it has 2 entries"):
        verify(workspace.engine)
    (workspace.folder / "audit-head").unlink()
    assert verify(workspace.engine) == 2  # without any note elsewhere nobody can tell
    said = CliRunner().invoke(app, ["audit", str(workspace.folder), "--expect", noted])
    assert isinstance(said.exception, WorkspaceError)
    assert "none of its 2 entries has the hash" in str(said.exception)


def test_a_hash_noted_before_is_expected(new_workspace: Maker, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    workspace = new_workspace(audit_head=str(elsewhere))
    noted = list(entries(workspace.engine))[-1].hash
    make_key(workspace.engine, "a", "read")
    assert verify(workspace.engine, noted) == 2
    last = list(entries(workspace.engine))[-1].hash
    for file in (elsewhere, workspace.folder / "audit-head"):
        assert file.read_text() == f"2 {last}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


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
    (workspace.folder / "audit-head").unlink()
    with pytest.raises(WorkspaceError, match="no entry of it has the key"):
        verify(workspace.engine)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (update(schema.models).values(state="rejected"), "state of model .* is not what the record says"),
        (update(schema.models).values(decision={}), "decision of model"),
        (update(schema.periods).values(evaluation=None), "evaluation of period 1"),
        (update(schema.periods).values(n_late=10**6), "n_late of period 0"),
        (delete(schema.service), "model None is in service, the audit record says m00001"),
        (
            insert(schema.keys).values(name="mine", scope="admin", digest="0" * 64, created=1),
            "API key mine is not in the audit record",
        ),
        (update(schema.keys).values(digest="0" * 64), "digest of API key shop"),
        (update(schema.keys).values(scope="admin"), "scope of API key shop"),
        (update(schema.keys).values(revoked=None), "revoked of API key shop"),
        (delete(schema.keys), "API key shop is not in the table"),
    ],
)
def test_changed_tables_are_found(learned: Workspace, change: Any, said: str) -> None:
    make_key(learned.engine, "shop", "read")
    revoke_key(learned.engine, "shop")
    assert verify(learned.engine) == 5
    with writing(learned.engine) as connection:
        connection.execute(change)
    with pytest.raises(WorkspaceError, match=said):
        verify(learned.engine)


def test_what_is_decided_later_counts(learned: Workspace) -> None:
    rollback(learned, by="test")
    assert verify(learned.engine) == 4


def test_an_old_record_counts_up_to_its_first_entry_with_the_key(tmp_path: Path, new_database: NewDatabase) -> None:
    folder, address = tmp_path / "old", new_database()
    folder.mkdir()
    (folder / "secret").write_bytes(b"s" * 32)
    if address is not None:
        (folder / "database").write_text(address)
    LiveConfig().write(folder)
    engine = connect(folder / EVENTS_FILE, address)
    upgrade(engine, "0001")
    first = Entry(1, 5, "init", "{}", "0" * 64, "")
    second = Entry(2, 6, "key", '{"action":"made","name":"a","scope":"read"}', plain_hash(first), "")
    with engine.begin() as connection:
        for entry in (first, second):
            connection.execute(insert(audit).values(**{**vars(entry), "hash": plain_hash(entry)}))
        connection.execute(insert(schema.keys).values(name="a", scope="read", digest="d" * 64, created=6))
    engine.dispose()
    assert Workspace.upgrade(folder)
    with Workspace.open(folder) as workspace:
        make_key(workspace.engine, "b", "read")
        assert [entry.kind for entry in entries(workspace.engine)] == ["init", "key", "upgrade", "key"]
        assert verify(workspace.engine) == 4
        with writing(workspace.engine) as connection:
            connection.execute(update(schema.keys).where(schema.keys.c.name == "a").values(digest="e" * 64))
        with pytest.raises(WorkspaceError, match="digest of API key a"):
            verify(workspace.engine)
