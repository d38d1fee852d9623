"""Test, then train, then ask the gate; and nothing is half done."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sqlalchemy import select
from sqlalchemy import update as sql_update
from streams import SMALL, know, named_stream, take_in

import fairstream
from fairstream.errors import ConfigurationError, WorkspaceError
from fairstream.service import schema, updates
from fairstream.service.audit import entries, verify
from fairstream.service.database import writing
from fairstream.service.event_store import closed_periods, split_of
from fairstream.service.learning import Learning
from fairstream.service.registry import in_service, models, promote, rollback, tidy
from fairstream.service.settings import LiveConfig, Privacy
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from live_services import add_model

Maker = Callable[..., Workspace]
PERIODS, PEOPLE = named_stream()
MINORITY = PEOPLE.filter(pc.equal(PEOPLE["value"], "minority"))["user_id"]


def with_items(events: pa.Table, items: pa.Array) -> pa.Table:
    return events.set_column(1, "item_id", items)


def as_learned(events: pa.Table) -> pa.Table:
    """Events with a kind, and timestamps in place of microseconds."""
    times, kinds = events["time"].cast(pa.timestamp("us")), pa.array(["event"] * len(events))
    return pa.table({"user_id": events["user_id"], "item_id": events["item_id"], "time": times, "kind": kinds})


def test_each_period_judges_the_model_in_service_and_makes_the_next(learned: Workspace) -> None:
    take_in(learned, PERIODS[2])
    outcome = update(learned)
    assert (outcome.kind, outcome.t) == ("promoted", 2)
    rows = models(learned.engine)
    assert [row.t for row in rows] == [2, 1, 0]
    assert [row.parent for row in rows] == [rows[1].id, rows[2].id, None]
    assert in_service(learned.engine).model == outcome.model == rows[0].id
    judged = [period.evaluation for period in closed_periods(learned.engine)]
    assert judged[0] is None
    for evaluation in judged[1:]:
        assert set(evaluation["metrics"]["ndcg@20"]["by_group"]) == {"majority", "minority"}
        assert evaluation["metrics"]["ndcg@20"]["disparity"]["interval"] is not None
    assert [entry.kind for entry in entries(learned.engine)][-3:] == ["update"] * 3
    verify(learned.engine)
    assert fairstream.load(learned.models.path(rows[0].id)).recommend(["u0"]).num_rows == 20


def test_a_model_is_judged_by_a_list_for_each_event(learned: Workspace) -> None:
    config = learned.config.with_options(privacy=Privacy(epsilon_per_quarter="off"))
    learned, served = replace(learned, config=config), in_service(learned.engine)
    assert served is not None
    late = split_of(learned, closed_periods(learned.engine)[-1]).held_out
    take_in(learned, PERIODS[2])
    update(learned)
    period = closed_periods(learned.engine)[-1]
    assert period.evaluation is not None
    recommender = fairstream.load(learned.models.path(served.model)).observe(as_learned(late))
    expected = recommender.evaluate(as_learned(PERIODS[2]), task="event", n_resamples=0)["ndcg@20"].mean
    assert period.evaluation["metrics"]["ndcg@20"]["mean"] == pytest.approx(expected, abs=1e-9)


def test_one_date_of_1970_takes_the_times_of_no_other_event(new_workspace: Maker) -> None:
    learning = Learning(model="sasrec", method="Finetune", model_settings={"embedding_dim": 8}, pretrain_epochs=1)
    workspace, events = new_workspace(**{**SMALL, "learning": learning}), PERIODS[0]
    times = events["time"].to_numpy().copy()
    times[0] = np.datetime64(0, "us")
    take_in(workspace, events.set_column(2, "time", pa.array(times)))
    outcome = update(workspace)
    assert outcome.model is not None
    assert fairstream.load(workspace.models.path(outcome.model)).model.reads_times


def test_held_out_events_are_learned_with_the_next_period(learned: Workspace) -> None:
    first, second = (split_of(learned, period) for period in closed_periods(learned.engine))
    (newest, *_) = models(learned.engine)
    assert newest.about["n_learned"] == len(first.held_out) + len(second.learned)
    known = fairstream.load(learned.models.path(newest.id))
    with pytest.raises(fairstream.DataError, match="learned from every one"):
        known.evaluate(as_learned(first.held_out))
    known.evaluate(as_learned(second.held_out))


def test_what_is_too_little_to_judge_by_stays_open(learned: Workspace) -> None:
    take_in(learned, PERIODS[2].slice(0, 40))
    before = in_service(learned.engine)
    outcome = update(learned)
    assert outcome.kind == "skipped"
    assert "stays open" in outcome.reason
    assert len(closed_periods(learned.engine)) == 2
    assert in_service(learned.engine) == before
    take_in(learned, PERIODS[2])
    assert update(learned).kind == "promoted"
    assert closed_periods(learned.engine)[2].n_events == len(PERIODS[2])


def test_no_candidate_is_judged_by_users_who_cannot_be_tested(learned: Workspace) -> None:
    """Held-out events of many users, but new ones, which alone test a model, of few: once, two promoted a model."""
    users = [f"u{n}" for n in range(300)]
    had = PERIODS[0].group_by("user_id", use_threads=False).aggregate([("item_id", "first"), ("time", "first")])
    had = had.rename_columns(["user_id", "item_id", "time"]).filter(pc.is_in(had["user_id"], pa.array(users)))
    assert len(had) > 2 * learned.config.gate.min_tested_users
    few, later = users[:10], pc.add(had["time"], timedelta(days=2))  # held out of those whom the lot draws
    brand_new = pa.table({"user_id": few, "item_id": ["new"] * len(few), "time": later.slice(0, len(few))})
    take_in(learned, pa.concat_tables([had.set_column(2, "time", pc.add(had["time"], timedelta(days=1))), brand_new]))
    before = in_service(learned.engine)
    outcome = update(learned)
    assert outcome.kind == "skipped", outcome
    assert "50 are needed (gate.min_tested_users)" in outcome.reason
    assert (in_service(learned.engine), len(closed_periods(learned.engine))) == (before, 2)


@pytest.mark.slow
def test_a_shop_without_any_group_data_gets_models_and_groups_count_once_they_are_known(new_workspace: Maker) -> None:
    workspace = new_workspace(**{**SMALL, "learning": SMALL["learning"].with_options(fairness_weight=1.0)})
    for events in PERIODS[:2]:
        take_in(workspace, events)
        outcome = update(workspace)
        assert outcome.kind == "promoted"
        assert "fewer than two groups are known, so nothing is done for fairness" in outcome.reason
    assert closed_periods(workspace.engine)[1].evaluation["metrics"]["ndcg@20"]["by_group"] == {}
    know(workspace, PEOPLE)
    take_in(workspace, PERIODS[2])
    outcome = update(workspace)
    assert "fairness" not in outcome.reason
    newest = models(workspace.engine)[0]
    assert set(newest.about["evaluation"]["metrics"]["ndcg@20"]["by_group"]) == {"majority", "minority"}


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, ["minority", "majority"]])
def test_an_accepted_gap_waits_until_there_are_groups(new_workspace: Maker, groups: list[str] | None) -> None:
    learning = SMALL["learning"].with_options(model="item-item", max_gap=0.001)
    open_gate = SMALL["gate"].with_options(max_fall=0.99, max_group_fall=0.99, max_rise=1.0, max_drift=1.0)
    options = {**SMALL, "learning": learning, "gate": open_gate, "groups": groups, "advantaged": "majority"}
    workspace = new_workspace(**options)
    for t, events in enumerate(PERIODS[:3]):
        if t == 1:
            know(workspace, PEOPLE)
        take_in(workspace, events)
        assert update(workspace).kind == "promoted"
    assert set(models(workspace.engine)[0].about["control"]["regret"]) == {"majority", "minority"}


def test_a_changed_shape_of_the_model_is_one_sentence_that_says_what_to_do(learned: Workspace) -> None:
    config = learned.config.with_options(
        learning=learned.config.learning.with_options(model_settings={"embedding_dim": 32})
    )
    take_in(learned, PERIODS[2])
    done = updates.run(replace(learned, config=config))
    assert done.state == "failed"
    current = in_service(learned.engine).model
    assert str(done.reason).startswith(
        f"model_settings is {{'embedding_dim': 32}} in fairstream.toml, but model {current} in service was made with "
        f"{{'embedding_dim': 16}}"
    )
    assert "put it back" in str(done.reason)
    assert updates.run(learned).state == "promoted"


def test_groups_are_those_that_were_declared() -> None:
    assert LiveConfig(groups=["M", "F"], advantaged="M").groups == ["M", "F"]
    for options, said in (
        ({"groups": ["M", "F "]}, "without blanks"),
        ({"groups": ["M", "M"]}, "different names"),
        ({"groups": ["M", "F"], "advantaged": "X"}, "advantaged must be one of groups, M, F, got 'X'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            LiveConfig(**options)


@pytest.mark.slow
def test_shuffled_labels_of_one_group_are_held_and_the_next_period_is_fine(learned: Workspace) -> None:
    events, rng = PERIODS[2], np.random.default_rng(0)
    theirs = pc.is_in(events["user_id"], MINORITY).to_numpy()
    items = np.array(events["item_id"].to_pylist(), dtype=object)
    every = np.array(pc.unique(PERIODS[0]["item_id"]).to_pylist(), dtype=object)
    items[theirs] = rng.choice(every, theirs.sum())
    take_in(learned, with_items(events, pa.array(items.tolist())))
    before = in_service(learned.engine)
    outcome = update(learned)
    assert outcome.kind == "rejected", outcome
    assert "minority" in outcome.reason
    assert in_service(learned.engine) == before
    take_in(learned, PERIODS[3])
    outcome = update(learned)
    assert outcome.kind == "promoted", outcome
    assert models(learned.engine)[0].parent == before.model


def test_a_training_that_diverges_leaves_the_old_model(learned: Workspace) -> None:
    before = in_service(learned.engine)
    config = learned.config.with_options(learning=learned.config.learning.with_options(learning_rate=1e30))
    config.write(learned.folder)
    take_in(learned, PERIODS[2])
    with Workspace.open(learned.folder) as changed:
        outcome = update(changed)
    assert outcome.kind in ("failed", "rejected")
    assert in_service(learned.engine) == before


def test_a_candidate_with_numbers_that_are_not_finite_fails(
    learned: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = fairstream.FairRecommender.update

    def spoil(self: fairstream.FairRecommender, *events: pa.Table, **options: object) -> fairstream.FairRecommender:
        train(self, *events, **options)
        next(iter(self.model.parameters())).data[-1] = float("nan")
        return self

    take_in(learned, PERIODS[2])
    with monkeypatch.context() as patched:
        patched.setattr(fairstream.FairRecommender, "update", spoil)
        outcome = update(learned)
    assert outcome.kind == "failed"
    assert outcome.reason.startswith("training left numbers in ")
    assert models(learned.engine)[0].id not in learned.models.names()


def test_promote_and_rollback(learned: Workspace) -> None:
    second, first = (row.id for row in models(learned.engine))
    assert rollback(learned, by="test") == first
    assert in_service(learned.engine).model == first
    with pytest.raises(WorkspaceError, match=r"no earlier model .*`fairstream promote`"):
        rollback(learned, by="test")
    promote(learned, second, by="test")
    assert in_service(learned.engine).model == second
    with pytest.raises(WorkspaceError, match="already"):
        promote(learned, second, by="test")
    with pytest.raises(WorkspaceError, match="there is no model"):
        promote(learned, "m9", by="test")
    assert [entry.kind for entry in entries(learned.engine)][-2:] == ["rollback", "promote"]


def test_the_parent_of_the_model_in_service_is_kept_however_many_candidates_were_rejected(new_workspace: Maker) -> None:
    workspace = new_workspace(keep_models=2)
    oldest, parent, current, *rejected = (add_model(workspace, seed=n, promote=n == 2) for n in range(5))
    with writing(workspace.engine) as connection:
        for model_id, made_from in {parent: oldest, current: parent, **dict.fromkeys(rejected, current)}.items():
            row = schema.models.c.id == model_id
            connection.execute(sql_update(schema.models).where(row).values(parent=made_from))
    with workspace.updating():
        tidy(workspace)
    assert workspace.models.names() == {parent, current, *rejected}
    assert rollback(workspace, by="test") == parent


@pytest.mark.slow
def test_models_too_old_to_be_kept_leave_the_disk_and_not_the_record(new_workspace: Maker) -> None:
    workspace = new_workspace(**SMALL, keep_models=2)
    know(workspace, PEOPLE)
    for events in PERIODS[:4]:
        take_in(workspace, events)
        update(workspace)
    take_in(workspace, PERIODS[4])
    update(workspace)
    assert len(models(workspace.engine)) == 5
    on_disk = {folder.name for folder in (workspace.folder / "models").glob("m*")}
    assert in_service(workspace.engine).model in on_disk
    assert len(on_disk) <= 4


@pytest.mark.slow
@pytest.mark.sqlite_only  # on PostgreSQL the database holds the files
def test_a_model_whose_removal_was_cut_short_cannot_be_promoted(
    new_workspace: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = new_workspace(**SMALL, keep_models=2)
    know(workspace, PEOPLE)
    for events in PERIODS[:3]:
        take_in(workspace, events)
        update(workspace)
    oldest = models(workspace.engine)[-1].id

    def cut_short(folder: Path, **_: object) -> None:
        (folder / "manifest.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", cut_short)
        with pytest.raises(KeyboardInterrupt):
            update(workspace)
    with pytest.raises(WorkspaceError, match="files were removed"):
        promote(workspace, oldest, by="test")
    update(workspace)  # sweeps up
    kept = {row.id for row in models(workspace.engine)}
    assert {folder.name for folder in (workspace.folder / "models").iterdir()} <= kept - {oldest}


def test_no_attribute_is_in_a_model_or_the_record(learned: Workspace) -> None:
    for folder in map(learned.models.path, learned.models.names()):
        _, tensors = fairstream.recommender.checkpoint.read_checkpoint(folder)
        assert (tensors["groups/codes"] == -1).all()
    with learned.engine.connect() as connection:
        bodies = connection.execute(select(schema.audit.c.body)).scalars().all()
    assert not any('"u17"' in body for body in bodies)
