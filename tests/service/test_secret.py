"""A workspace opens with the secret that it was made with, and with no other."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import delete

from fairstream.cli import main
from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.audit import entries, verify
from fairstream.service.database import revision, writing
from fairstream.service.event_store import EventStore
from fairstream.service.forgetting import request_forget
from fairstream.service.incoming import batch_from_json
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
EVENT = {"user_id": "gone", "item_id": "i", "time": 1}
WRONG = {"another": secrets.token_bytes(32), "empty": b"", "short": b"s" * 31}


def wrong_secrets(right: bytes) -> dict[str, bytes]:
    return {**WRONG, "cut short": right[:16], "longer": right + b"\n"}


def test_a_wrong_secret_opens_nothing_and_changes_nothing(
    new_workspace: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = new_workspace()
    store, path = EventStore(workspace), workspace.folder / "secret"
    store.append(batch_from_json([EVENT], workspace.config.limits))
    request_forget(workspace, ["gone"], by="test")
    before = list(entries(workspace.engine)), store.last_seq()
    events = tmp_path / "events.csv"
    events.write_text("user_id,item_id,time\ngone,i,1\n")
    folder = str(workspace.folder)
    commands = (
        ["status", folder],
        ["serve", folder, "--port", "0"],
        ["ingest", folder, str(events)],
        ["upgrade", folder],
    )
    for name, wrong in wrong_secrets(workspace.secret).items():
        path.write_bytes(wrong)
        for command in commands:
            monkeypatch.setattr("sys.argv", ["fairstream", *command])
            with pytest.raises(SystemExit) as ended:
                main()
            told = " ".join(capsys.readouterr().err.split())
            assert ended.value.code == 2, (name, command)
            assert "must hold the secret that this workspace was made with" in told, (name, command)
    assert (list(entries(workspace.engine)), store.last_seq()) == before
    path.write_bytes(workspace.secret)
    with Workspace.open(workspace.folder) as again:
        receipt = EventStore(again).append(batch_from_json([EVENT], again.config.limits))
        assert (receipt.accepted, receipt.forgotten) == (0, 1)


def test_a_second_machine_with_another_secret_is_refused(on_postgres: Workspace, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    for name in ("fairstream.toml", "database"):
        (second / name).write_bytes((on_postgres.folder / name).read_bytes())
    (second / "secret").write_bytes(WRONG["another"])
    with pytest.raises(WorkspaceError, match="must hold the secret that this workspace was made with"):
        Workspace.open(second)
    assert verify(on_postgres.engine) == 1
    (second / "secret").write_bytes(on_postgres.secret)
    Workspace.open(second).close()


def test_an_upgrade_stores_the_check_value_of_the_secret_that_fits_the_record(new_workspace: Maker) -> None:
    workspace = new_workspace()
    with writing(workspace.engine) as connection:
        connection.execute(delete(schema.secret_check))  # as an earlier version left it
    path, right = workspace.folder / "secret", workspace.secret
    path.write_bytes(WRONG["another"])
    with pytest.raises(WorkspaceError, match="must hold the secret"):
        Workspace.upgrade(workspace.folder)
    path.write_bytes(right)
    Workspace.upgrade(workspace.folder)
    with workspace.engine.connect() as connection:
        assert len(connection.execute(schema.secret_check.select()).all()) == 1


def test_an_upgrade_with_a_wrong_secret_leaves_the_tables_as_they_were(new_workspace: Maker) -> None:
    workspace = new_workspace()
    with writing(workspace.engine) as connection:
        schema.secret_check.drop(connection)
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0003'")
    (workspace.folder / "secret").write_bytes(WRONG["another"])
    with pytest.raises(WorkspaceError, match="must hold the secret"):
        Workspace.upgrade(workspace.folder)
    assert revision(workspace.engine) == "0003"
    (workspace.folder / "secret").write_bytes(workspace.secret)
    assert Workspace.upgrade(workspace.folder)
    Workspace.open(workspace.folder).close()
