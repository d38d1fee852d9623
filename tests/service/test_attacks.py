"""One ingest key stops learning in none of the ways in which it once did, nor ingest, nor the gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from streams import SMALL, named_stream, take_in

from fairstream import load
from fairstream.service import updates
from fairstream.service.event_store import EventStore, closed_periods
from fairstream.service.learning import Learning
from fairstream.service.lists import Ask
from fairstream.service.registry import in_service, model
from fairstream.service.serving_model import ServingModel
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace

PERIODS, PEOPLE = named_stream()
EVENTS = PERIODS[2]
N_BAD = len(EVENTS) // 3  # a quarter of all
LAST = pc.max(EVENTS["time"]).as_py()


def later(users: list[str], items: list[str]) -> pa.Table:
    """Events dated after all others."""
    times = [LAST + timedelta(seconds=n) for n in range(len(users))]
    return pa.table({"user_id": users, "item_id": items, "time": pa.array(times, pa.timestamp("us"))})


def updated(workspace: Workspace, bad: pa.Table) -> updates.Update:
    take_in(workspace, pa.concat_tables([EVENTS, bad]))
    return updates.run(workspace)


def test_a_flood_of_one_user_is_left_out_and_everybody_elses_period_is_learned(learned: Workspace) -> None:
    n = len(EVENTS) // 7  # 12.5 % of all
    done = updated(learned, later(["flooder"] * n, [f"spam{at}" for at in range(n)]))
    assert done.state == "promoted", done
    assert "events of users with more than 10% of the period were left out" in str(done.reason)
    about = model(learned.engine, str(done.model)).about
    kept = n - about["data"]["n_surplus"]
    assert 0.09 * len(EVENTS) < kept <= 0.1 * (len(EVENTS) + kept)
    known = load(learned.models.path(str(done.model))).state
    n_spam = sum(str(item).startswith("spam") for item in known.item_ids.ids.to_pylist())
    assert n_spam <= kept


def test_made_up_users_dated_ahead_do_not_become_the_whole_test(learned: Workspace) -> None:
    n_users = learned.config.gate.min_tested_users - 1
    rng = np.random.default_rng(0)
    users = [f"made-up{n % n_users}" for n in range(N_BAD)]
    done = updated(learned, later(users, [f"i{n}" for n in rng.integers(0, 150, N_BAD)]))
    assert done.state == "promoted", done


def test_pairs_that_people_have_had_already_do_not_become_the_whole_test(learned: Workspace) -> None:
    had = PERIODS[0].slice(0, N_BAD)
    done = updated(learned, later(had["user_id"].to_pylist(), had["item_id"].to_pylist()))
    assert done.state == "promoted", done


@pytest.mark.parametrize("name", ["mf", "item-item"])
def test_events_that_only_the_model_in_service_foresees_do_not_decide_alone(
    new_workspace: Callable[..., Workspace], name: str
) -> None:
    """Each of many people gets the items in places 18 to 20 of the own list, which any training moves."""
    learning = SMALL["learning"] if name == "mf" else Learning(model=name)
    workspace = new_workspace(**{**SMALL, "learning": learning})
    for events in PERIODS[:2]:
        take_in(workspace, events)
        assert updates.run(workspace).state == "promoted"
    current = load(workspace.models.path(in_service(workspace.engine).model))
    lists = current.recommend(pc.unique(PERIODS[0]["user_id"]).slice(0, 160), k=20)
    chosen = lists.filter(pc.greater_equal(lists["rank"], 18))
    done = updated(workspace, later(chosen["user_id"].to_pylist(), chosen["item_id"].to_pylist()))
    assert done.state == "promoted", done


def test_a_full_period_is_closed_unjudged_so_that_ingest_goes_on(learned: Workspace) -> None:
    limits = Limits(max_open_events=1000)
    learned = replace(learned, config=learned.config.with_options(limits=limits))
    n_users = 20
    take_in(learned, later([f"made-up{n % n_users}" for n in range(950)], [f"i{n % 150}" for n in range(950)]))
    done = updates.run(learned)
    assert (done.state, done.t) == ("skipped", 2)
    assert "the period is full and was closed without a judgement" in str(done.reason)
    assert (closed_periods(learned.engine)[-1].evaluation, EventStore(learned).n_open()) == (None, 0)
    learned = replace(learned, config=learned.config.with_options(limits=Limits()))
    take_in(learned, PERIODS[3])
    done = updates.run(learned)
    assert (done.state, done.t) == ("promoted", 3)


def test_a_full_period_is_due_whatever_the_schedule(learned: Workspace) -> None:
    limits = Limits(max_open_events=1000)
    learned = replace(learned, config=learned.config.with_options(limits=limits))
    every = updates.Every(10**6, "events")
    take_in(learned, EVENTS.slice(0, 890))
    assert updates.request_if_due(learned, every, "test") is None
    take_in(learned, EVENTS.slice(890, 10))
    assert updates.request_if_due(learned, every, "test") is not None


def test_made_up_users_do_not_raise_an_item_for_every_newcomer(learned: Workspace) -> None:
    n = len(EVENTS) // 12  # each with one event, 8 % of all
    before = stranger_of(learned, str(in_service(learned.engine).model))
    done = updated(learned, later([f"made-up{at}" for at in range(n)], ["i147"] * n))
    assert done.state == "promoted", done
    after = stranger_of(learned, str(done.model))
    assert "i147" not in [*before, *after]
    assert len(set(before) & set(after)) > 10  # what regular people like still counts


def test_invented_newcomers_do_not_look_like_drift(learned: Workspace) -> None:
    n = len(EVENTS)
    unpopular = [f"i{at}" for at in (147, 39, 106)]
    done = updated(learned, later([f"made-up{at // 2}" for at in range(n)], [unpopular[at % 3] for at in range(n)]))
    assert done.state == "promoted", done
    checks = model(learned.engine, str(done.model)).decision["checks"]
    assert any("for all users known before" in check["sentence"] for check in checks)


def stranger_of(workspace: Workspace, model_id: str) -> list[str]:
    state = load(workspace.models.path(model_id)).state
    return ServingModel(state, model_id).recommend("nobody", Ask(20)).items
