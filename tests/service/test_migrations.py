"""The tables that a new workspace has, and workspaces of other versions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.database import _MIGRATIONS, latest_revision, writing
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]


def test_the_tables_are_those_of_the_schema(new_workspace: Maker) -> None:
    workspace = new_workspace()
    tables = inspect(workspace.engine)
    for table in (*schema.metadata.tables.values(), schema.attributes):
        columns = tables.get_columns(table.name, schema="people" if table is schema.attributes else None)
        nullable = {column["name"]: column["nullable"] for column in columns}
        assert nullable == {column.name: column.nullable for column in table.columns}, table.name


@pytest.mark.parametrize("other", ["0005", "0099"])
def test_a_workspace_of_another_version_is_refused_with_what_to_do(new_workspace: Maker, other: str) -> None:
    workspace = new_workspace()
    with writing(workspace.engine) as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{other}'")
    with pytest.raises(WorkspaceError, match=rf"revision {other}.*`fairstream upgrade DIR`"):
        Workspace.open(workspace.folder)
    with pytest.raises(WorkspaceError, match=rf"revision {other}.*`fairstream init` and ingest the events"):
        Workspace.upgrade(workspace.folder)


def test_the_last_migration_by_name_is_the_last_in_line() -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == latest_revision()
