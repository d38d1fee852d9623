"""Adver as a method: in a run, in a recommender, in a checkpoint, and after an update that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

import fairstream
from fairstream import EventLog, FairRecommender, Record, Run
from fairstream.experiments import pooled
from fairstream.training.optimizers import state_tensors
from support import Recorder

pytestmark = pytest.mark.slow

FAST: dict[str, Any] = {
    "pretrain_epochs": 1,
    "update_epochs": 1,
    "embedding_dim": 8,
    "batch_size": 128,
    "device": "cpu",
}
JUDGED = {**FAST, "n_periods": 3, "n_blocks": 3, "min_group_size": 1, "n_resamples": 0}
STREAM = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=1000)
THIRDS = pa.array([None if row % 5 == 0 else "abc"[row % 3] for row in range(STREAM.users.num_rows)])
USERS = STREAM.users.append_column("third", THIRDS)
BOTH = pytest.mark.parametrize("model", ["mf", "ncf"])
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["row", "dense"])


@pytest.fixture(scope="module")
def small() -> EventLog:
    return fairstream.read_events(STREAM.events, users=USERS, group="community", advantaged="majority")


@pytest.fixture(scope="module")
def thirds() -> EventLog:
    """Three groups, and users who have none."""
    return fairstream.read_events(STREAM.events, users=USERS, group="third")


def finished(log: EventLog, method: str = "Adver", **options: Any) -> Run:
    run = fairstream.run(log, method, **{"model": "mf", **JUDGED, **options})
    list(run)
    return run


def everything(rec: FairRecommender) -> dict[str, torch.Tensor]:
    state = rec.state
    assert state.optimizer is not None
    return {**state.model.state_dict(), **state_tensors(state.optimizer, state.model)}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def fitted(model: str, optimizer: str, *, n: int = 500, **options: Any) -> FairRecommender:
    rec = FairRecommender(model, method="Adver", optimizer=optimizer, **{**FAST, **options})
    return rec.fit(fairstream.read_events(STREAM.events.slice(0, n), users=USERS, group="third"))


# ── runs ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["strict", "paper"])
@BOTH
def test_a_run_is_judged_and_says_how_well_the_group_can_be_told(small: EventLog, model: str, protocol: str) -> None:
    run = fairstream.run(small, "adver", model=model, protocol=protocol, **JUDGED)
    assert run.group_recovery() is None  # there is no model yet
    assert run.document()["group_recovery"] is None
    assert [str(result.update.step) for result in run] == ["fine-tune", "fine-tune"]
    found = run.document()["group_recovery"]
    json.dumps(found, allow_nan=False)
    assert 0 <= found["interval"][0] <= found["balanced_accuracy"] <= found["interval"][1] <= 1
    assert found["chance"] == 0.5
    known = run.groups.codes[: small.n_users_after(run.periods.ends[2])] >= 0
    assert found["n_users"] == (known & run.state.trained).sum()


def test_other_methods_are_asked_only_on_request(small: EventLog) -> None:
    run = finished(small, "FADE")
    assert "group_recovery" not in run.document()
    assert "group_recovery" in finished(small, "Finetune").document()  # which Adver is compared with
    found = run.group_recovery()
    assert found is not None
    assert found == run.group_recovery()


def test_three_groups_and_users_without_one(thirds: EventLog) -> None:
    run = finished(thirds)
    found = run.group_recovery()
    assert found is not None
    assert found.chance == pytest.approx(1 / 3)
    n_learned = thirds.n_users_after(run.periods.ends[2])
    known = run.groups.codes[:n_learned] >= 0
    assert found.n_users == (known & run.state.trained).sum() < n_learned


def test_the_weight_of_the_adversary_matters_to_adver_alone(small: EventLog) -> None:
    def numbers(method: str, weight: float) -> Any:
        return finished(small, method, adversary_weight=weight).document()["periods"]

    assert numbers("Adver", 1.0) != numbers("Adver", 50.0)
    assert numbers("FADE", 1.0) == numbers("FADE", 50.0)


def test_the_weight_of_the_adversary_is_a_setting_of_adver_alone(small: EventLog) -> None:
    adver, fade = (Record.from_document(finished(small, method).document()) for method in ("Adver", "FADE"))
    assert adver.settings["adversary_weight"] == 10.0
    assert "adversary_weight" not in fade.settings
    assert "fairness_weight" not in adver.settings


def test_seeds_are_averaged(small: EventLog) -> None:
    records = [Record.from_document(finished(small, seed=seed).document()) for seed in (0, 1)]
    accuracies = [record.document["group_recovery"]["balanced_accuracy"] for record in records]
    found = pooled(records)["group_recovery"]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(accuracies))
    assert found["seed_sd"] == pytest.approx(np.std(accuracies, ddof=1))
    assert found["interval"] is None
    assert pooled(records[:1])["group_recovery"] == records[0].document["group_recovery"]


# ── recommenders ─────────────────────────────────────────────────────────────────────────


@BOTH
@OPTIMIZERS
def test_a_loaded_recommender_goes_on_bit_for_bit(tmp_path: Path, model: str, optimizer: str) -> None:
    rec = fitted(model, optimizer)
    rec.update(STREAM.events.slice(500, 250), users=USERS)
    rec.save(tmp_path / "model")
    again = fairstream.load(tmp_path / "model")
    assert_same(everything(rec), everything(again))
    ids = STREAM.events["user_id"][:5]
    assert again.recommend(ids) == rec.recommend(ids)
    for one in (rec, again):
        torch.rand(3)  # whatever else the program draws
        one.update(STREAM.events.slice(750), users=USERS)
    assert_same(everything(rec), everything(again))


def test_a_group_that_appears_later_is_there_after_loading(tmp_path: Path) -> None:
    events = STREAM.events
    late = set(events["user_id"].to_pylist()) - set(events["user_id"].to_pylist()[:300])
    communities = zip(USERS["user_id"].to_pylist(), USERS["community"].to_pylist(), strict=True)
    users = USERS.append_column("late", pa.array(["new" if user in late else name for user, name in communities]))
    rec = FairRecommender("mf", method="Adver", **FAST)
    early = pc.field("late") != "new"
    rec.fit(fairstream.read_events(events.slice(0, 300), users=users.filter(early), group="late"))
    before = rec.state.model.get_parameter("group_discriminator.head.bias")
    rec.update(events.slice(300), users=users)
    after = rec.state.model.get_parameter("group_discriminator.head.bias")
    assert (len(before), len(after)) == (2, 3)
    rec.save(tmp_path / "model")
    assert_same(everything(rec), everything(fairstream.load(tmp_path / "model")))


class Interrupted(BaseException):
    """Somebody has lost patience."""


@BOTH
@OPTIMIZERS
def test_an_update_that_fails_has_not_been(model: str, optimizer: str) -> None:
    def give_up(done: int, total: int) -> None:
        raise Interrupted

    rec = fitted(model, optimizer)
    before = {name: value.clone() for name, value in everything(rec).items()}
    with pytest.raises(Interrupted):
        rec.update(STREAM.events.slice(500), users=USERS, on_epoch=give_up)
    assert_same(everything(rec), before)
    undisturbed = fitted(model, optimizer)
    for one in (rec, undisturbed):
        one.update(STREAM.events.slice(500), users=USERS)
    assert_same(everything(rec), everything(undisturbed))


def test_newcomers_are_made_room_for(small: EventLog) -> None:
    rec = fitted("mf", "row", n=200)
    n_before = rec.model.n_users
    rec.update(STREAM.events.slice(200), users=USERS)
    assert rec.model.n_users > n_before
    ids = STREAM.events["user_id"].unique()
    found = rec.recommend(ids, k=5)
    assert set(found["source"].to_pylist()) == {"model"}
    assert np.isfinite(found["score"].to_numpy()).all()


def test_a_model_of_ones_own_is_filtered_too() -> None:
    rec = FairRecommender(Recorder, method="Adver", pretrain_epochs=1, device="cpu")
    rec.fit(STREAM.events.slice(0, 300), users=STREAM.users)
    assert isinstance(rec.model, Recorder)
    assert "user_filter.norm.weight" in rec.model.state_dict()
