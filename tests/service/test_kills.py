"""Killed at any moment: what was acknowledged is there once, and a whole model answers."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from streams import know, n_pending, periods_of, take_in, values_of
from victims import N_FORGETTABLE, N_STOCKED, TASKS, Victims

import fairstream
from fairstream.errors import CheckpointError
from fairstream.service import items, schema
from fairstream.service.audit import verify
from fairstream.service.learning import Learning
from fairstream.service.registry import in_service, model, models
from fairstream.service.settings import Gate
from fairstream.service.tally import Tally
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from live_services import wait_until

pytestmark = pytest.mark.slow
N_KILLS = int(os.environ.get("FAIRSTREAM_KILLS", "40"))
Maker = Callable[..., Workspace]
OPTIONS = {
    "learning": Learning(
        model="mf",
        method="FADE",
        model_settings={"embedding_dim": 8},
        pretrain_epochs=3,
        update_epochs=2,
        batch_size=256,
    ),
    "gate": Gate(min_tested_users=30, min_group_size=10, max_user_share=1, max_fall=0.99, max_rise=1, max_drift=1),
    "keep_models": 4,
}


@pytest.fixture
def workspace(new_workspace: Maker) -> Iterator[Workspace]:
    made = new_workspace(**OPTIONS)
    periods, people = periods_of(n_users=200, n_items=100, n_events=4000, n_periods=1)
    know(made, people)
    take_in(made, periods[0])
    assert update(made).kind == "promoted"
    return made


def assert_whole(workspace: Workspace) -> None:
    """A restart finds a model that answers; if another was put into service meanwhile, that one is asked."""
    while True:
        current = in_service(workspace.engine)
        assert current is not None
        try:
            recommender = fairstream.load(
                workspace.models.path(model(workspace.engine, current.model).folder), device="cpu"
            )
        except CheckpointError:
            assert in_service(workspace.engine) != current
        else:
            assert recommender.recommend(["a stranger"], k=5).num_rows == 5
            return


def assert_experiments_are_whole(workspace: Workspace, tried_file: Path) -> None:
    """Each acknowledged start, end and list is there, and each list is counted once."""
    tried = [line.split() for line in tried_file.read_text().split("\n")[:-1]]
    started, ended, shown = ({name for kind, name in tried if kind == wanted} for wanted in ("start", "end", "shown"))
    Tally(workspace).count()
    with workspace.engine.connect() as connection:
        experiments = connection.execute(select(schema.experiments)).all()
        lists = list(connection.scalars(select(schema.impressions.c.list_id)))
        counts = schema.impression_counts.c
        counted = connection.scalar(select(func.sum(counts.n)).where(counts.what == "lists"))
    assert started <= {row.id for row in experiments}
    assert ended <= {row.id for row in experiments if row.state == "ended"}
    assert [row.state for row in experiments].count("running") <= 1
    assert shown <= set(lists)
    assert counted == len(lists) == len(set(lists)) > 0
    print(f"{len(started)} experiments started, {len(ended)} ended, {len(lists)} lists shown")


def test_nothing_is_lost_and_nothing_is_half(workspace: Workspace, tmp_path: Path) -> None:
    begin, victims = time.monotonic(), Victims(workspace, tmp_path)
    forgotten_file = victims.notes("forget")
    try:
        for _ in range(N_KILLS):
            name = victims.next_kill()
            assert_whole(workspace)
            verify(workspace.engine)
            victims.restart(name)
        victims.end("decide")  # on a slow machine hardly an update ends between two decisions
        wait_until(lambda: len(models(workspace.engine)) > 1)  # an update has come to its end …
        wait_until(lambda: b"!" in forgotten_file.read_bytes())  # … a forgetting …
        wait_until(lambda: b"end" in victims.notes("experiment").read_bytes())  # … and an experiment
    finally:
        victims.end_all()
    print(f"\n{N_KILLS} kills in {time.monotonic() - begin:.0f} s: {dict(sorted(victims.kills.items()))}")
    lines = victims.notes("ingest").read_bytes().split(b"\n")[:-1]
    acknowledged = {event: user for line in lines for event, user in json.loads(line)}
    to_be_forgotten, forgotten = (
        {line[2:].decode() for line in forgotten_file.read_bytes().split(b"\n")[:-1] if line.startswith(mark)}
        for mark in (b"?", b"!")
    )
    with workspace.engine.connect() as connection:
        rows = connection.execute(select(schema.events.c.event_id, schema.events.c.user_id)).all()
        n_periods = connection.execute(select(func.count()).select_from(schema.periods)).scalar_one()
        n_models = connection.execute(select(func.count()).select_from(schema.models)).scalar_one()
        outcomes = Counter(f"{row.state}: {row.reason}"[:60] for row in connection.execute(select(schema.updates)))
    there = {row.event_id for row in rows}
    lost = {event for event, user in acknowledged.items() if user not in to_be_forgotten} - there
    decisions = Counter(victims.notes("decide").read_text().split())
    stocks = [int(line) for line in victims.notes("stock").read_bytes().split()]
    print(f"{len(acknowledged)} events acknowledged, {len(lost)} lost, {len(rows) - len(there)} twice")
    print(f"{n_periods} periods; updates: {dict(outcomes.most_common())}; decisions: {dict(decisions)}")
    print(f"{len(forgotten)} people forgotten of {len(to_be_forgotten)} requested; {len(stocks)} stock feeds")
    stocked = [item.model_dump() for item in items.listed(workspace.engine, limit=N_STOCKED + 1)]
    [(stock, is_available)] = {(item["stock"], item["available"]) for item in stocked}  # every feed whole or not at all
    assert len(stocked) == N_STOCKED
    assert is_available == (stock % 4 == 0)
    assert stock >= max(stocks)
    assert_experiments_are_whole(workspace, victims.notes("experiment"))
    assert forgotten <= to_be_forgotten <= {f"u{n}" for n in range(N_FORGETTABLE)}
    assert not lost
    assert len(there) == len(rows)
    assert n_models == n_periods > 1
    verify(workspace.engine)
    update(workspace)  # sweeps up, and completes what was cut short
    assert n_pending(workspace) == 0
    assert workspace.models.names() <= {row.folder for row in models(workspace.engine)}
    assert not forgotten & {row.user_id for row in rows}
    assert not forgotten & set(values_of(workspace)["user_id"].to_pylist())
    for name in workspace.models.names():
        known = fairstream.load(workspace.models.path(name), device="cpu").state.user_ids
        assert (known.lookup(sorted(forgotten)) < 0).all()
    if N_KILLS > 99:  # enough for each task to be hit
        assert all(victims.kills[f"{name} at work"] for name in TASKS), victims.kills
