"""Old events are deleted when no kept model needs them."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import func, select
from sqlalchemy import update as update_statement
from streams import named_stream, take_in

from fairstream.recommender import load
from fairstream.service import event_store, schema
from fairstream.service.audit import entries, verify
from fairstream.service.database import now, writing
from fairstream.service.event_store import EventStore, closed_periods, prune
from fairstream.service.registry import in_service, model, models
from fairstream.service.settings import Retention
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

PERIODS, _ = named_stream()


def with_days(workspace: Workspace, days: int | None) -> Workspace:
    """The same workspace, opened with another configuration."""
    workspace.config.with_options(retention=Retention(events_days=days)).write(workspace.folder)
    return Workspace.open(workspace.folder)


def test_everything_is_kept_unless_configured(learned: Workspace) -> None:
    assert prune(learned) == 0
    with with_days(learned, 10**5) as patient:
        assert prune(patient) == 0


def test_only_what_no_kept_model_needs_is_deleted(learned: Workspace) -> None:
    first, second = closed_periods(learned.engine)
    with with_days(learned, 1) as workspace:
        assert prune(workspace) == 0  # the first model is kept for a rollback
        workspace.models.remove([models(workspace.engine)[-1].folder])
        assert prune(workspace) == first.n_events
        left = EventStore(workspace).read(0)["seq"]
        assert left[0].as_py() == second.first_seq
        assert len(left) == second.n_events
        assert [entry.kind for entry in entries(workspace.engine)][-1] == "prune"
        assert prune(workspace) == 0
        verify(workspace.engine)


def test_recent_events_stay_among_old_ones_that_came_in_before_and_after_them(learned: Workspace) -> None:
    first, _ = closed_periods(learned.engine)
    learned.models.remove([models(learned.engine)[-1].folder])
    recent = [first.first_seq + 1, first.first_seq + 5]
    with writing(learned.engine) as connection:
        these = schema.events.c.seq.in_(recent)
        connection.execute(update_statement(schema.events).where(these).values(time=now()))
    with with_days(learned, 1) as workspace:
        assert prune(workspace) == first.n_events - len(recent)
        assert EventStore(workspace).read(0, first.last_seq)["seq"].to_pylist() == recent


def test_updates_prune_and_go_on_without_what_is_gone(learned: Workspace) -> None:
    learned.models.remove([models(learned.engine)[-1].folder])
    with with_days(learned, 1) as workspace:
        take_in(workspace, PERIODS[2])
        assert update(workspace).kind in ("promoted", "rejected")
        store, periods = EventStore(workspace), closed_periods(workspace.engine)
        assert store.read(0)["seq"][0].as_py() >= periods[1].first_seq


def test_the_next_model_knows_only_events_that_are_stored(learned: Workspace) -> None:
    """So that the memory of a service is bounded by the events that it keeps."""
    learned.models.remove([models(learned.engine)[-1].folder])
    before, gate = known_to(learned), learned.config.gate.with_options(max_fall=0.9)  # most users are new to it then
    learned.config.with_options(gate=gate, retention=Retention(events_days=1)).write(learned.folder)
    with Workspace.open(learned.folder) as workspace:
        take_in(workspace, PERIODS[2])
        assert update(workspace).kind == "promoted"
        stored = EventStore(workspace).read(0)
        pairs = set(zip(stored["user_id"].to_pylist(), stored["item_id"].to_pylist(), strict=True))
        assert known_to(workspace) <= pairs
        assert before - pairs  # something was there to be dropped


def known_to(workspace: Workspace) -> set[tuple[str, str]]:
    """Who had what, as the model in service knows it."""
    row = model(workspace.engine, in_service(workspace.engine).model)
    state = load(workspace.models.path(row.folder)).state
    users, items = state.user_ids.ids.take(state.history.users), state.item_ids.ids.take(state.history.items)
    assert set(users.to_pylist()) == set(state.user_ids.ids.to_pylist())
    return set(zip(users.to_pylist(), items.to_pylist(), strict=True))


@pytest.mark.slow
def test_events_come_in_between_two_parts(learned: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update runs at a low priority: what it deletes in one transaction keeps writers waiting many times as long."""
    first, _ = closed_periods(learned.engine)
    learned.models.remove([models(learned.engine)[-1].folder])
    left = [first.n_events]

    def others_write(_: float) -> None:
        with writing(learned.engine) as connection:  # would wait for ever, and fail after five seconds
            connection.execute(update_statement(schema.items).values(changed=0))
            n_old = connection.scalar(select(func.count()).where(schema.events.c.seq <= first.last_seq))
            assert n_old == left[-1] - 100
            left.append(n_old)

    monkeypatch.setattr(event_store, "_PRUNED_AT_ONCE", 100)
    monkeypatch.setattr(event_store, "sleep", others_write)
    with with_days(learned, 1) as workspace:
        assert prune(workspace) == first.n_events
        assert len(left) == 1 + first.n_events // 100
        [entry] = [entry for entry in entries(workspace.engine) if entry.kind == "prune"]
        assert json.loads(entry.body)["n_events"] == first.n_events
