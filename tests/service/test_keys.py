"""A key is shown once, opens what its scope says, and nothing after it was revoked."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from sqlalchemy import select

from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service.audit import entries, verify
from fairstream.service.keys import SCOPES, find_key, list_keys, make_key, revoke_key
from fairstream.service.schema import keys
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]


def test_a_key_opens_until_it_is_revoked(new_workspace: Maker) -> None:
    engine = new_workspace().engine
    made = {scope: make_key(engine, f"the {scope} key", scope) for scope in SCOPES}
    assert all(re.fullmatch(r"fs_[\w-]{43}", key) for key in made.values())
    assert {find_key(engine, key) for key in made.values()} == {(f"the {scope} key", scope) for scope in SCOPES}
    revoke_key(engine, "the read key")
    assert find_key(engine, made["read"]) is None
    assert find_key(engine, made["ingest"]) == ("the ingest key", "ingest")
    valid = {key.scope for key in list_keys(engine) if key.revoked is None}
    assert valid == {*SCOPES} - {"read"}


def test_any_other_text_opens_nothing(new_workspace: Maker) -> None:
    engine = new_workspace().engine
    make_key(engine, "a", "admin")
    for text in ("", "fs_", "fs_" + "a" * 43, "\ud800", "\x00", "' OR 1=1 --"):
        assert find_key(engine, text) is None


def test_the_key_itself_is_kept_nowhere(new_workspace: Maker) -> None:
    engine = new_workspace().engine
    key = make_key(engine, "a", "admin")
    with engine.connect() as connection:
        assert key not in str(connection.execute(select(keys)).all())
    assert key not in str(list(entries(engine)))


def test_each_key_is_on_record(new_workspace: Maker) -> None:
    engine = new_workspace().engine
    make_key(engine, "a", "read")
    revoke_key(engine, "a")
    assert [entry.kind for entry in entries(engine)] == ["init", "key", "key"]
    assert verify(engine) == 3


@pytest.mark.parametrize(("name", "scope"), [("a", "root"), ("", "read"), ("a" * 65, "read"), ("a\nb", "read")])
def test_a_key_that_cannot_be_made_is_one_sentence(new_workspace: Maker, name: str, scope: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        make_key(new_workspace().engine, name, scope)
    assert "\n" not in str(told.value)


def test_a_name_is_given_once_and_revoked_once(new_workspace: Maker) -> None:
    engine = new_workspace().engine
    make_key(engine, "a", "read")
    with pytest.raises(WorkspaceError, match="already"):
        make_key(engine, "a", "admin")
    revoke_key(engine, "a")
    for name in ("a", "b"):
        with pytest.raises(WorkspaceError, match="no key named"):
            revoke_key(engine, name)
    assert verify(engine) == 3
