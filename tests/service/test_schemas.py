"""Workspaces in schemas of one PostgreSQL database know nothing of each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from streams import SMALL, know, named_stream, take_in

from fairstream.cli import main
from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service.audit import entries, verify
from fairstream.service.database import connect, upgrade
from fairstream.service.event_store import EventStore
from fairstream.service.keys import find_key, list_keys, make_key
from fairstream.service.settings import LiveConfig
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def address(on_postgres: Workspace) -> str:
    """A database that holds a workspace in `public` already."""
    return (on_postgres.folder / "database").read_text()


def _create(folder: Path, address: str, schema: str) -> Workspace:
    return Workspace.create(folder, LiveConfig(group="community", **SMALL), f"{address}&schema={schema}")


def test_two_schemas_share_nothing(on_postgres: Workspace, address: str, tmp_path: Path) -> None:
    periods, people = named_stream()
    with _create(tmp_path / "a", address, "a") as first, _create(tmp_path / "b", address, "b") as second:
        key = make_key(first.engine, "shared", "read")
        make_key(second.engine, "shared", "admin")
        know(first, people)
        take_in(first, periods[0])
        with first.updating(), second.updating(), on_postgres.updating():  # each has its own lock
            pass
        assert update(first).kind == "promoted"
        assert find_key(first.engine, key) == ("shared", "read")
        for other in (second, on_postgres):
            assert find_key(other.engine, key) is None
            assert EventStore(other).last_seq() == 0
            assert other.models.names() == set()
            assert other.people.values().num_rows == 0
            assert verify(other.engine) == len(list(entries(other.engine)))
        assert list_keys(on_postgres.engine) == []
        assert first.people.values().num_rows == len(people)
    with first.engine.connect() as connection:
        schemas = connection.exec_driver_sql(
            "SELECT table_schema FROM information_schema.tables WHERE table_type = 'BASE TABLE' "
            "AND table_name IN ('attributes', 'alembic_version') AND table_schema NOT LIKE 'information%%'"
        )
        assert sorted(schemas.scalars()) == ["a", "a_people", "b", "b_people", "people", "public"]
    first.close()


def test_a_schema_is_taken_once_and_has_a_plain_name(address: str, tmp_path: Path) -> None:
    _create(tmp_path / "a", address, "a").close()
    with pytest.raises(WorkspaceError, match="holds a workspace already"):
        _create(tmp_path / "again", address, "a")
    engine = connect(tmp_path, f"{address}&schema=killed")
    upgrade(engine)  # what a killed `init` leaves
    engine.dispose()
    _create(tmp_path / "killed", address, "killed").close()
    for name in ("A", 'a"b', "1a", "a b"):
        with pytest.raises(ConfigurationError, match="a schema must be named"):
            _create(tmp_path / "bad", address, name)


def test_init_puts_the_tables_into_a_schema(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = tmp_path / "shop"
    monkeypatch.setenv("FAIRSTREAM_DATABASE", address)
    monkeypatch.setattr("sys.argv", ["fairstream", "init", str(shop), "--schema", "shop"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    key = next(word for word in capsys.readouterr().out.split() if word.startswith("fs_"))
    with Workspace.open(shop) as workspace:  # the environment names the database, the file the schema
        assert find_key(workspace.engine, key) == ("admin", "admin")
