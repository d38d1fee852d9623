"""Imported history is replayed in periods, in order of time, whatever the order in which it came."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from streams import SMALL, know, periods_of, take_in

from fairstream.service import updates
from fairstream.service.event_store import EventStore, closed_periods, in_order
from fairstream.service.gaps import latest_gap
from fairstream.service.learning import Learning
from fairstream.service.registry import models
from fairstream.service.settings import Every, Gate, Privacy
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from live_services import make_keys, running, wait_until

Maker = Callable[..., Workspace]
PARTS, PEOPLE = periods_of()
QUICK = {**SMALL, "learning": Learning(model="recent-popularity")}
N_EVENTS = sum(map(len, PARTS))


def imported(new_workspace: Maker, **options: Any) -> Workspace:
    """A workspace with the whole stream, in no order of time."""
    workspace = new_workspace(**{**QUICK, **options})
    know(workspace, PEOPLE)
    everything = pa.concat_tables(PARTS)
    shuffled = everything.take(np.random.default_rng(0).permutation(len(everything)))
    take_in(workspace, shuffled.slice(0, 9000))
    take_in(workspace, shuffled.slice(9000))
    return workspace


def bounds(workspace: Workspace) -> list[tuple[int, int]]:
    return [(period.first_seq, period.last_seq) for period in closed_periods(workspace.engine)]


def test_history_is_replayed_in_periods_of_the_order_of_time(new_workspace: Maker) -> None:
    workspace = imported(new_workspace)
    done = updates.run(workspace)
    periods, store = closed_periods(workspace.engine), EventStore(workspace)
    assert done.state in ("promoted", "rejected")
    assert done.t == 10
    assert len(periods) == 11
    assert periods[0].n_events == N_EVENTS // 2
    assert store.n_open() == 0
    tables = [in_order(store.learned(period.first_seq - 1, period.last_seq)) for period in periods]
    assert sum(map(len, tables)) == N_EVENTS
    times = np.concatenate([table["time"].to_numpy() for table in tables])
    assert (np.diff(times) >= 0).all()
    assert [period.n_late for period in periods] == [0] * 11
    assert all(period.evaluation for period in periods[1:])
    assert len(models(workspace.engine)) == 11
    assert {update.requested_by for update in updates.listed(workspace.engine)} == {"command line"}
    known = store.items_of(user := tables[0]["user_id"][0].as_py())
    assert set(known) == {row["item_id"] for table in tables for row in table.to_pylist() if row["user_id"] == user}
    assert not updates.request_if_due(workspace, Every.parse("1d"), "schedule")


@pytest.mark.slow
def test_a_replay_that_is_killed_goes_on_where_it_was(new_workspace: Maker) -> None:
    whole = imported(new_workspace)
    updates.run(whole)
    workspace = imported(new_workspace)
    for n_closed, n_more in ((0, 0), (2, 2), (3, 1)):
        with pytest.raises(KeyboardInterrupt):
            updates.run(workspace, say=interrupting(n_more))
        assert len(closed_periods(workspace.engine)) == n_closed
    due = updates.request_if_due(workspace, Every.parse("365d"), "schedule")
    assert due is not None
    updates.run(workspace, due.id)
    assert bounds(workspace) == bounds(whole)


def interrupting(n_updates: int) -> Callable[[str], None]:
    """Interrupts the update after so many."""
    counter = itertools.count()

    def say(sentence: str) -> None:
        if sentence.startswith("learning") and next(counter) == n_updates:
            raise KeyboardInterrupt

    return say


def test_parts_with_too_few_users_join(new_workspace: Maker) -> None:
    workspace = imported(new_workspace, gate=Gate(min_tested_users=110, min_group_size=20))
    updates.run(workspace)
    periods = closed_periods(workspace.engine)
    assert 2 <= len(periods) < 11
    assert all(period.evaluation["n_tested_users"] >= 110 for period in periods[1:] if period.evaluation)
    assert EventStore(workspace).n_open() > 0  # the end has too few, and waits
    assert updates.request_if_due(workspace, Every.parse("1d"), "schedule") is None


@pytest.mark.slow
def test_after_an_import_the_budget_shows_groups_and_their_regret(new_workspace: Maker) -> None:
    """With what accrues in a month nothing was shown of a shop with 3,000 people."""
    parts, people = periods_of(n_users=3000, n_items=300, n_events=60_000, disparity=0.8)
    workspace = new_workspace(**{**QUICK, "privacy": Privacy()})
    know(workspace, people)
    take_in(workspace, pa.concat_tables(parts))
    updates.run(workspace)
    *before, last = closed_periods(workspace.engine)
    assert all(period.evaluation["withheld"] for period in before if period.evaluation)
    assert last.evaluation is not None
    assert last.evaluation["withheld"] == {}
    assert latest_gap([last])[1] is not None
    newest, second = models(workspace.engine, limit=2)
    assert "imported history" in second.about["control"]["sentence"]
    assert set(newest.about["control"]["regret"]) == {"majority", "minority"}


def test_a_model_without_levels_says_so(new_workspace: Maker) -> None:
    workspace = new_workspace(**{**SMALL, "privacy": Privacy()})
    know(workspace, PEOPLE)
    take_in(workspace, pa.concat_tables(PARTS))
    update(workspace)
    update(workspace)
    [newest] = models(workspace.engine, limit=1)
    assert "levels change nothing" in newest.about["control"]["sentence"]


def test_a_small_rest_of_history_does_not_withhold_numbers_of_groups(new_workspace: Maker) -> None:
    workspace = imported(new_workspace, gate=Gate(min_tested_users=110, min_group_size=20), privacy=Privacy())
    updates.run(workspace)
    assert EventStore(workspace).n_open() > 0
    withheld = closed_periods(workspace.engine)[-1].evaluation["withheld"]
    assert not any("imported history" in reason for reason in withheld.values())


def test_events_of_a_day_are_one_period(new_workspace: Maker) -> None:
    workspace = new_workspace(**QUICK)
    take_in(workspace, PARTS[0])
    updates.run(workspace)
    assert bounds(workspace) == [(1, len(PARTS[0]))]


def test_afresh_learns_history_at_once(new_workspace: Maker) -> None:
    workspace = imported(new_workspace)
    updates.run(workspace, afresh=True)
    assert bounds(workspace) == [(1, N_EVENTS)]


@pytest.mark.slow
def test_events_that_come_after_the_history_are_the_next_period(new_workspace: Maker) -> None:
    workspace = imported(new_workspace)
    update(workspace)
    later = PARTS[1].set_column(1, "item_id", pc.binary_join_element_wise("new", PARTS[1]["item_id"], "-"))
    take_in(workspace, later)
    updates.run(workspace)
    assert bounds(workspace)[-1][1] == N_EVENTS
    done = updates.run(workspace)
    assert done.t is not None, done.reason
    assert bounds(workspace)[-1] == (N_EVENTS + 1, N_EVENTS + len(later))
    assert closed_periods(workspace.engine)[-1].replay_until is None


@pytest.mark.slow
def test_a_replay_survives_kills_of_its_process(new_workspace: Maker) -> None:
    whole = imported(new_workspace)
    updates.run(whole)
    workspace = imported(new_workspace)
    command = [sys.executable, "-m", "fairstream", "update", str(workspace.folder), "--quiet"]
    for n_closed in (1, 4, 6):
        with subprocess.Popen(command, start_new_session=True) as process:
            wait_until(lambda n=n_closed: len(closed_periods(workspace.engine)) >= n or process.poll() is not None)
            process.kill()
        assert n_closed <= len(closed_periods(workspace.engine)) < 11

    def is_closed() -> bool:  # PostgreSQL learns a moment later that the process is gone
        updates.fail_dead(workspace)
        return all(update.finished is not None for update in updates.listed(workspace.engine))

    wait_until(is_closed)
    assert updates.run(workspace).t == 10
    assert bounds(workspace) == bounds(whole)


@pytest.mark.slow
@pytest.mark.sqlite_only
def test_one_request_to_the_service_replays_all_history(new_workspace: Maker) -> None:
    workspace = imported(new_workspace)
    keys = make_keys(workspace)
    with running(workspace, keys) as client:
        client.wait_until_ready()
        assert client.post("/v1/updates", headers=keys.admin).status_code == 202
        wait_until(lambda: len(closed_periods(workspace.engine)) == 11)
        periods = client.get("/v1/periods", headers=keys.read).json()["data"]
        updates_ = client.get("/v1/updates", headers=keys.read).json()["data"]
    assert len({update["requested_by"] for update in updates_}) == 1
    assert all(period["evaluation"]["metrics"]["ndcg@20"]["mean"] > 0 for period in periods[1:])
