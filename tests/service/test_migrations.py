"""A workspace of the first edition is brought up with all that is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.database import _MIGRATIONS, EVENTS_FILE, connect, latest_revision, upgrade
from fairstream.service.event_store import EventStore
from fairstream.service.forgetting import request_forget
from fairstream.service.incoming import batch_from_json
from fairstream.service.periods import closed_periods
from fairstream.service.registry import in_service, model
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace

NewDatabase = Callable[..., str | None]
ROWS: dict[str, list[dict[str, Any]]] = {
    "events": [
        {"seq": n, "event_id": f"e{n}", "user_id": f"u{n % 3}", "item_id": "i", "time": 100 - n} for n in range(1, 11)
    ],
    "people.attributes": [{"user_id": "u1", "value": "m"}],
    "periods": [
        # Of its six events four could be learned, the earliest four: numbers 6, 5, 4, 3.
        {"t": 0, "first_seq": 1, "last_seq": 6, "closed": 5, "n_events": 6, "n_users": 3, "n_late": 0}
        | {"n_learnable": 4, "judgement": None},
        {"t": 1, "first_seq": 7, "last_seq": 10, "closed": 9, "n_events": 4, "n_users": 3, "n_late": 0}
        | {"n_learnable": 4, "judgement": json.dumps({"levels": {"m": 0.5}})},
    ],
    "models": [
        {"id": "m0", "t": 0, "parent": None, "state": "promoted", "created": 5, "seconds": 1_500_000}
        | {"decision": "{}", "about": json.dumps({"judgement": {"n_tested_users": 3}})},
        {"id": "m1", "t": 1, "parent": "m0", "state": "held", "created": 9, "seconds": 1}
        | {"decision": "{}", "about": "{}"},
    ],
    "service": [{"id": 1, "model": "m0", "since": 5}],
    "forgotten": [{"digest": "d" * 64, "time": 77}],
    "api_keys": [{"name": "shop", "scope": "read", "digest": "k" * 64, "created": 1, "revoked": None}],
}


def insert_all(engine: Engine, folder: Path) -> None:
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            driver: Any = connection.connection.driver_connection
            driver.execute("ATTACH DATABASE ? AS people", (str(folder / "people.sqlite"),))
            connection.detach()
        for table, rows in ROWS.items():
            names = list(rows[0])
            statement = f"INSERT INTO {table} ({','.join(names)}) VALUES ({','.join(f':{name}' for name in names)})"
            connection.execute(text(statement), rows)
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT setval('events_seq_seq', 10)"))
        connection.commit()


@pytest.fixture
def old(tmp_path: Path, new_database: NewDatabase) -> Path:
    """The folder of a workspace as the first edition left it."""
    folder, address = tmp_path / "old", new_database()
    folder.mkdir()
    (folder / "secret").write_bytes(b"s" * 32)
    if address is not None:
        (folder / "database").write_text(address)
    LiveConfig(group="sex").write(folder)
    engine = connect(folder / EVENTS_FILE, address)
    upgrade(engine, "0001")
    insert_all(engine, folder)
    engine.dispose()
    return folder


def test_every_row_is_kept_under_its_new_name(old: Path) -> None:
    with pytest.raises(WorkspaceError, match="bring them up with `fairstream upgrade DIR`"):
        Workspace.open(old)
    assert "brought to" in CliRunner().invoke(app, ["upgrade", str(old)]).output
    assert "up to date" in CliRunner().invoke(app, ["upgrade", str(old)]).output
    with Workspace.open(old) as workspace:
        first, second = closed_periods(workspace.engine)
        assert (first.split_time, first.split_seq) == (98, 2)  # the first event that was held out
        assert second.split_seq == 11  # none was
        assert second.evaluation == {"levels": {"m": 0.5}}
        assert in_service(workspace.engine) == ("m0", 5)
        promoted, rejected = (model(workspace.engine, name) for name in ("m0", "m1"))
        assert (promoted.folder, promoted.training_seconds, promoted.state) == ("m0", 1.5, "promoted")
        assert promoted.about == {"evaluation": {"n_tested_users": 3}}
        assert rejected.state == "rejected"
        with workspace.people() as people:
            assert people.values().to_pylist() == ROWS["people.attributes"]
        with workspace.engine.connect() as connection:
            row = connection.execute(schema.forgotten.select()).one()
            assert row == ("d" * 64, 77, 77, 77)
            assert connection.execute(schema.keys.select()).one().name == "shop"
        store = EventStore(workspace)
        assert store.read(0).num_rows == 10
        assert store.items_of("u1") == ["i"]
        store.append(batch_from_json([{"user_id": "u", "item_id": "i", "time": 1}], workspace.config.limits))
        assert store.last_seq() == 11


def test_the_tables_are_those_of_the_schema(old: Path) -> None:
    CliRunner().invoke(app, ["upgrade", str(old)])
    with Workspace.open(old) as workspace:
        found = inspect(workspace.engine)
        for table in schema.metadata.tables.values():
            if table.schema is None:
                columns = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
                assert columns == {column.name: column.nullable for column in table.columns}, table.name


def test_events_from_before_are_forgotten_with_those_that_came_since(old: Path) -> None:
    CliRunner().invoke(app, ["upgrade", str(old)])
    with Workspace.open(old) as workspace:
        new = [{"user_id": "u1", "item_id": f"i{n}", "time": n} for n in range(3)]
        EventStore(workspace).append(batch_from_json(new, workspace.config.limits))
        assert request_forget(workspace, ["u1"], by="test").n_events == 4 + 3
        assert "u1" not in EventStore(workspace).read(0)["user_id"].to_pylist()


def test_the_last_migration_by_name_is_the_last_in_line() -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == latest_revision()
