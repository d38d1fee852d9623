"""The sensitive attribute: apart from all else, for the owner alone, the last value counting."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams import know

from fairstream.errors import DataError
from fairstream.service import people
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_json, people_from_arrow, people_from_json
from fairstream.service.people import UsersReceipt
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
_texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=5)


@pytest.fixture
def workspace(new_workspace: Maker) -> Workspace:
    return new_workspace()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.tuples(_texts, _texts), max_size=6), max_size=4))
def test_the_last_value_counts(workspace: Workspace, parts: list[list[tuple[str, str]]]) -> None:
    store = workspace.people
    for part in parts:
        people = people_from_json([{"user_id": user, "value": value} for user, value in part])
        assert store.put(people) == UsersReceipt(len(dict(part)), 0)
    expected = dict(pair for part in parts for pair in part)
    assert store.values_of(list(expected)) == expected
    assert store.values_of([]) == {}
    assert store.values().num_rows >= len(expected)
    assert store.remove(list(expected)) == len(expected)
    assert store.values_of(list(expected)) == {}


def test_only_declared_groups_are_taken() -> None:
    people = {"user_id": ["a", "b"], "value": ["M", "M "]}
    rows = pa.table(people).to_pylist()
    for read in (
        lambda: people_from_json(rows, allowed=["M", "F"]),
        lambda: people_from_arrow(pa.table(people), allowed=["M", "F"]),
    ):
        with pytest.raises(DataError, match="user 2: value must be one of M, F"):
            read()
    assert len(people_from_json(rows[:1], allowed=["M", "F"])) == 1


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


def private(folder: Path) -> None:
    for name, mode in modes(folder).items():
        if name != "fairstream.toml":
            assert mode & 0o077 == 0, f"{name} {mode:o}"


@pytest.mark.sqlite_only
def test_nobody_else_reads_the_folder_whatever_its_mode_was(tmp_path: Path) -> None:
    """A volume that is mounted was there before, and the usual umask lets everybody read."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    folder.chmod(0o755)
    before = os.umask(0o022)
    try:
        with Workspace.create(folder, LiveConfig()) as workspace:
            know(workspace, pa.table({"user_id": ["u1"], "value": ["m"]}))
            EventStore(workspace).append(
                batch_from_json([{"user_id": "u1", "item_id": "i", "time": 1}], workspace.config.limits)
            )
            assert {"events.sqlite-wal", "events.sqlite-shm"} <= modes(folder).keys()  # they are there, and private too
            private(folder)
        for path in (folder, *folder.iterdir()):
            path.chmod(0o777)  # restored from a backup, say
        with Workspace.open(folder):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)


@pytest.mark.sqlite_only
def test_groups_are_in_their_own_file(workspace: Workspace) -> None:
    know(workspace, pa.table({"user_id": ["u1"], "value": ["remarkable"]}))
    files = [path for path in workspace.folder.rglob("*") if path.is_file() and b"remarkable" in path.read_bytes()]
    assert {path.name.removesuffix("-wal") for path in files} == {"people.sqlite"}


def test_events_are_stored_while_many_users_are_imported(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    store, batches = EventStore(workspace), []

    def append(_: float) -> None:
        rows = [{"user_id": "u1", "item_id": "i", "time": len(batches)}]
        batches.append(store.append(batch_from_json(rows, workspace.config.limits)))

    monkeypatch.setattr(people, "_ROWS_OF_A_TRANSACTION", 2)
    monkeypatch.setattr(people, "sleep", append)
    users = pa.table({"user_id": [f"u{n}" for n in range(7)], "value": ["m"] * 7})
    assert workspace.people.put(users) == UsersReceipt(7, 0)
    assert [receipt.accepted for receipt in batches] == [1, 1, 1]
    assert workspace.people.values().num_rows == 7
