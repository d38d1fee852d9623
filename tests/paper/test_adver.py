"""Adver as a method of experiments."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream
from fairstream import EventLog, Record, RunConfig
from fairstream.experiments import pooled
from fairstream.paper.run import PaperRun
from support import Recorder

pytestmark = pytest.mark.slow

FAST: dict[str, Any] = {
    "pretrain_epochs": 1,
    "update_epochs": 1,
    "model_settings": {"embedding_dim": 8},
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


def finished(log: EventLog, method: str = "Adver", **options: Any) -> Any:
    run = fairstream.run(log, method, **{"model": "mf", **JUDGED, **options})
    list(run)
    return run


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


def test_of_other_methods_the_paper_asks_finetune(small: EventLog) -> None:
    """Which Adver is compared with, under either protocol."""
    for method in ("Finetune", "FADE"):
        run = PaperRun(small, RunConfig(method=method, model="mf", **JUDGED))
        list(run)
        assert ("group_recovery" in run.document()) == (method == "Finetune")
        assert run.group_recovery() == run.group_recovery() is not None


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


class Interrupted(BaseException):
    """Somebody has lost patience."""


@BOTH
@OPTIMIZERS
def test_an_update_that_fails_has_not_been(small: EventLog, model: str, optimizer: str) -> None:
    def give_up(t: int, done: int, total: int) -> None:
        raise Interrupted

    options = {**JUDGED, "model": model, "optimizer": optimizer}
    run, undisturbed = (fairstream.run(small, "Adver", **options) for _ in range(2))
    run.begin()
    run.on_progress = give_up
    with pytest.raises(Interrupted):
        next(run)
    run.on_progress = None
    assert [result.to_dict() for result in run] == [result.to_dict() for result in undisturbed]


def test_newcomers_are_made_room_for(small: EventLog) -> None:
    run = fairstream.run(small, "Adver", **JUDGED)
    run.begin()
    n_before = run.state.model.n_users
    list(run)
    assert run.state.model.n_users > n_before


def test_a_model_of_ones_own_is_filtered_too(small: EventLog) -> None:
    run = finished(small, model=Recorder)
    assert isinstance(run.state.model, Recorder)
    assert "user_filter.norm.weight" in run.state.model.state_dict()
