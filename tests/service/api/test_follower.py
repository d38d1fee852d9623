"""What answers keeps up with the database, and goes on answering whatever is wrong with it or with a model."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event, update
from sqlalchemy.exc import OperationalError

from fairstream import load
from fairstream.errors import WorkspaceError
from fairstream.service import items, schema
from fairstream.service.api import follower as following
from fairstream.service.api.follower import Follower
from fairstream.service.database import DatabaseUnavailableError, writing
from fairstream.service.event_store import EventStore
from fairstream.service.forgetting import forget, request_forget
from fairstream.service.incoming import batch_from_json
from fairstream.service.lists import Ask
from fairstream.service.registry import in_service, promote, rollback
from fairstream.service.serving import Serving
from fairstream.service.workspace import Workspace
from live_services import N_ITEMS, add_model

NewWorkspace = Callable[..., Workspace]


def follower_of(workspace: Workspace) -> tuple[Follower, Serving]:
    serving = Serving()
    return Follower(workspace, EventStore(workspace), serving), serving


def store(workspace: Workspace, *events: tuple[str, str], first_time: int = 10**6) -> None:
    rows = [{"user_id": user, "item_id": item, "time": first_time + n} for n, (user, item) in enumerate(events)]
    EventStore(workspace).append(batch_from_json(rows, workspace.config.limits))


def set_available(workspace: Workspace, item: str, *, available: bool) -> None:
    items.set_available(workspace.engine, item, available)


def with_parent(workspace: Workspace) -> tuple[str, str]:
    """Two models, the second of which descends from the first and is in service."""
    first, second = add_model(workspace), add_model(workspace, seed=1)
    with writing(workspace.engine) as connection:
        connection.execute(update(schema.models).where(schema.models.c.id == second).values(parent=first))
    return first, second


def damage(workspace: Workspace, model: str) -> None:
    (file,) = workspace.models.path(model).glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(workspace: Workspace, model: str) -> None:
    manifest = workspace.models.path(model) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:100])


def remove(workspace: Workspace, model: str) -> None:
    shutil.rmtree(workspace.models.path(model))


def test_a_poll_applies_promotions_events_and_withdrawn_items_and_reads_no_long_table(
    new_workspace: NewWorkspace,
) -> None:
    workspace = new_workspace()
    first = add_model(workspace)
    follower, serving = follower_of(workspace)
    follower.poll()
    assert serving.status() == (first, "model", None, 0, True)

    best = serving.current.recommend("u1", Ask(3)).items
    store(workspace, ("u1", best[0]))
    set_available(workspace, best[1], available=False)
    follower.poll()
    assert serving.current.recommend("u1", Ask(1)).items == best[2:]
    set_available(workspace, best[1], available=True)
    follower.poll()
    assert serving.current.recommend("u1", Ask(2)).items == best[1:]

    second = add_model(workspace, seed=1)
    follower.poll()
    assert serving.status().model == second

    statements: list[str] = []
    event.listen(workspace.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    follower.poll()
    assert len([statement for statement in statements if "SELECT" in statement]) == 3
    # These tables grow: a counter says whether they have changed.
    assert not re.search("FROM (items|forgotten)", " ".join(statements))


def test_events_of_rejected_periods_and_those_the_model_has_not_learned_are_known(new_workspace: NewWorkspace) -> None:
    workspace = new_workspace()
    add_model(workspace)
    add_model(workspace, seed=1, promote=False)
    follower, serving = follower_of(workspace)
    follower.poll()
    for user in ("u1", "u2"):
        assert not {*EventStore(workspace).items_of(user)} & {*serving.current.recommend(user, Ask(N_ITEMS)).items}


@pytest.mark.few(1)
@pytest.mark.sqlite_only  # on PostgreSQL a folder that is not whole is fetched again
@pytest.mark.parametrize("harm", [damage, cut, remove])
def test_a_model_that_cannot_be_loaded_is_replaced_by_the_one_it_was_made_from(
    new_workspace: NewWorkspace, harm: Callable[[Workspace, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = new_workspace()
    first, second = with_parent(workspace)
    expected = load(workspace.models.path(first)).recommend(["nobody"], k=N_ITEMS)["item_id"].to_pylist()
    copy = workspace.folder / "copy"
    shutil.copytree(workspace.models.path(second), copy)
    harm(workspace, second)
    follower, serving = follower_of(workspace)
    follower.poll()
    model, source, problem, _, ready = serving.status()
    assert (model, source, ready) == (first, "earlier model", True)
    assert problem == f"model {second} cannot be loaded: its files are damaged or missing"
    assert {*serving.current.recommend("nobody", Ask(N_ITEMS)).items} == {*expected}

    answering = serving.current
    monkeypatch.setattr(following, "_RETRY_SECONDS", 0.0)
    follower.poll()  # too soon
    follower._retry_at = 0.0
    follower.poll()  # in vain
    assert serving.current is answering
    shutil.rmtree(workspace.models._folder / second, ignore_errors=True)
    copy.rename(workspace.models._folder / second)
    follower.poll()
    assert serving.status()[:3] == (second, "model", None)


def test_popularity_answers_where_no_model_can_be_loaded_and_before_there_is_one(new_workspace: NewWorkspace) -> None:
    workspace = new_workspace()
    follower, serving = follower_of(workspace)
    follower.poll()
    assert serving.status().ready
    assert serving.current.recommend("u1", Ask(5)).items == []
    store(workspace, *((f"u{n}", f"i{n % 3}") for n in range(9)))
    follower._refresh_at = 0.0
    follower.poll()
    assert {*serving.current.recommend("nobody", Ask(5)).items} == {"i0", "i1", "i2"}
    assert serving.status()[:2] == (None, "popularity")
    assert "there is no model yet" in str(serving.status().problem)

    for model in with_parent(workspace):
        damage(workspace, model)
    follower.poll()
    model, source, problem, _, ready = serving.status()
    assert (model, source, ready) == (None, "popularity", True)
    assert problem is not None
    assert "cannot be loaded" in problem
    assert serving.current.recommend("u1", Ask(5)).source == "popularity"


def test_answers_go_on_without_the_database_and_the_status_says_why_they_are_stale(
    new_workspace: NewWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = new_workspace()
    add_model(workspace)
    follower, serving = follower_of(workspace)
    follower.poll()
    before = serving.current.json("u1", Ask(5))
    unreachable = "the database cannot be reached; lists are made from what is in memory"
    for error, problem in (
        (WorkspaceError("gone"), unreachable),
        (RuntimeError("?"), "RuntimeError"),
        (MemoryError(), "there is not enough memory"),
    ):

        def fail(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(follower, "poll", fail)
        with pytest.raises(type(error)):
            follower.follow()
        assert serving.status().problem == problem
        assert serving.current.json("u1", Ask(5)) == before
    monkeypatch.undo()
    follower.follow()
    assert serving.status()[2:] == (None, 0, True)  # the last look went well


def test_a_forgotten_person_is_a_stranger_at_the_next_look_and_after_a_restart(new_workspace: NewWorkspace) -> None:
    workspace = new_workspace()
    add_model(workspace, model="item-item")
    follower, serving = follower_of(workspace)
    store(workspace, ("newcomer", "i3"))
    follower.poll()
    stranger = serving.current.recommend("nobody", Ask(10))
    for user in ("u1", "newcomer"):
        assert serving.current.recommend(user, Ask(10)) != stranger
    request_forget(workspace, ["u1", "newcomer"], by="test")
    follower.poll()
    restarted, other = follower_of(workspace)
    restarted.poll()
    for answering in (serving, other):  # the model on disk still knows u1
        for user in ("u1", "newcomer"):
            assert answering.current.recommend(user, Ask(10)) == answering.current.recommend("nobody", Ask(10))
    store(workspace, ("u1", "i3"), first_time=int(time.time()) + 60)  # somebody new
    for each, answering in ((follower, serving), (restarted, other)):
        each.poll()
        assert (
            answering.current.recommend("u1", Ask(10)).items
            == answering.current.recommend_session(["i3"], Ask(10)).items
        )


def test_a_model_that_was_written_anew_is_loaded_again(new_workspace: NewWorkspace) -> None:
    workspace = new_workspace()
    name = add_model(workspace)
    follower, serving = follower_of(workspace)
    follower.poll()
    before, service = serving.current, in_service(workspace.engine)
    forget(workspace, ["u1"], by="test")
    follower.poll()
    assert serving.current is not before
    assert serving.status().model == name
    assert in_service(workspace.engine) == service


def test_a_rollback_is_taken_up_whichever_read_of_the_database_fails_meanwhile(new_workspace: NewWorkspace) -> None:
    workspace = new_workspace()
    first, second = with_parent(workspace)
    follower, serving = follower_of(workspace)
    for n_good in itertools.count():  # that many reads succeed, the next one fails
        follower.poll()
        assert serving.status().model == second
        rollback(workspace, by="test")
        failed = fails_after(follower, workspace, n_good)
        follower.poll()
        assert serving.status()[:3] == (first, "model", None)
        promote(workspace, second, by="test")
        if not failed:
            break
    assert n_good > 3  # the look, the parents, who is to be forgotten, the events


def fails_after(follower: Follower, workspace: Workspace, n_good: int) -> bool:
    """Look once while one use of the database fails; says whether the look came to it."""
    left = n_good

    def fail(connection: Connection) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            connection.close()  # this one is real
            raise OperationalError("SELECT", {}, Exception("connection reset"))

    event.listen(workspace.engine, "engine_connect", fail)
    try:
        follower.poll()
    except WorkspaceError:
        return True
    finally:
        event.remove(workspace.engine, "engine_connect", fail)
    return False


def test_a_model_that_cannot_be_fetched_keeps_nobody_from_being_forgotten(
    new_workspace: NewWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = new_workspace()
    add_model(workspace)
    follower, serving = follower_of(workspace)
    follower.poll()

    def away(_: str) -> Any:
        raise DatabaseUnavailableError("gone")

    monkeypatch.setattr(workspace.models, "path", away)
    second = add_model(workspace, seed=1)
    best = serving.current.recommend("u2", Ask(1)).items
    store(workspace, ("u2", best[0]))
    request_forget(workspace, ["u1"], by="test")
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            follower.poll()
        assert serving.current.recommend("u1", Ask(10)) == serving.current.recommend("nobody", Ask(10))
        assert best[0] not in serving.current.recommend("u2", Ask(N_ITEMS)).items
    monkeypatch.undo()
    follower.poll()
    assert serving.status().model == second


@pytest.mark.few(1)
def test_lists_go_on_when_the_file_of_the_model_that_answers_is_cut_short(new_workspace: NewWorkspace) -> None:
    """A process that had mapped the file would be killed."""
    workspace = new_workspace()
    model = add_model(workspace)
    follower, serving = follower_of(workspace)
    follower.poll()
    (file,) = workspace.models.path(model).glob("*.safetensors")
    os.truncate(file, 0)
    store(workspace, ("u1", "1"))
    follower.poll()
    for user in ("u1", "nobody"):
        assert serving.current.recommend(user, Ask(N_ITEMS)).items
    assert serving.status()[:3] == (model, "model", None)
