"""The sensitive attribute: apart from all else, the last value counting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairstream.service.people import people_from_json, put_people, values_of
from fairstream.service.workspace import Workspace

pytestmark = pytest.mark.both_databases
Maker = Callable[..., Workspace]
_texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=5)


@pytest.fixture
def workspace(new_workspace: Maker) -> Workspace:
    return new_workspace()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.tuples(_texts, _texts), max_size=6), max_size=4))
def test_the_last_value_counts(workspace: Workspace, parts: list[list[tuple[str, str]]]) -> None:
    engine = workspace.engine
    for part in parts:
        people = people_from_json([{"user_id": user, "value": value} for user, value in part])
        assert put_people(engine, people) == len(dict(part))
    expected = dict(pair for part in parts for pair in part)
    stored = values_of(engine, expected).to_pylist()
    assert {row["user_id"]: row["value"] for row in stored} == expected
    assert len(stored) == len(expected)
    assert values_of(engine, []).num_rows == 0
    assert values_of(engine).num_rows >= len(expected)


def test_with_sqlite_groups_are_in_a_file_of_their_own(new_workspace: Maker) -> None:
    workspace = new_workspace()
    put_people(workspace.engine, people_from_json([{"user_id": "u1", "value": "remarkable"}]))
    files = [path for path in workspace.folder.rglob("*") if path.is_file() and b"remarkable" in path.read_bytes()]
    assert all(path.name.startswith("people.sqlite") for path in files)
