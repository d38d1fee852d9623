"""`max_disparity`: the gap that is accepted, held by the weights of events, from the past alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import fairstream as fs
from fairstream import FairRecommender, MaxGap
from fairstream.data import UNKNOWN
from fairstream.errors import ConfigurationError
from fairstream.models import ItemItemScorer
from fairstream.recommender import jobs
from fairstream.recommender.jobs import MIN_USERS_OF_AN_ITEM
from fairstream.sampling import NegativeSampler
from fairstream.strategies import Measured, MeasureGroups
from fairstream.strategies.controller import Estimate
from fairstream.training import TrainingJob, cut_windows
from fairstream.training.reference import WindowEngine
from support import make_recommender

STREAM = fs.synthetic_stream(n_users=400, n_items=80, n_events=9000, seed=2, disadvantaged_share=0.3)
LOG = fs.read_events(STREAM.events.slice(0, 4000), users=STREAM.users, group="community", advantaged="majority")
PERIODS = [STREAM.events.slice(4000 + 1000 * t, 1000) for t in range(5)]
QUICK: dict[str, Any] = {"device": "cpu", "max_disparity": 0.001}


def kept_up(model: str, n_periods: int = len(PERIODS), **options: Any) -> fs.FairRecommender:
    rec = make_recommender(model, **{**QUICK, **options}).fit(LOG)
    for events in PERIODS[:n_periods]:
        rec.update(events, users=STREAM.users)
    return rec


@pytest.fixture(scope="module")
def controlled() -> fs.FairRecommender:
    return kept_up("item-item")


def test_the_controller_sets_weights_and_says_why(controlled: fs.FairRecommender) -> None:
    assert controlled.state.event_weights["minority"] > 1.2
    assert "majority" not in controlled.state.event_weights  # only the ratio of the two matters
    assert any(note.startswith("minority is ") and "the rest and may be 0.001" in note for note in controlled.notes)
    assert len(controlled.state.control["periods"]) == len(PERIODS)


def test_a_model_with_weights_is_the_one_computed_with_them(controlled: fs.FairRecommender) -> None:
    weight = controlled.state.event_weights["minority"]
    everything = fs.read_events(STREAM.events, users=STREAM.users, group="community", advantaged="majority")
    fixed = make_recommender("item-item", device="cpu", group_weight=weight).fit(everything)
    for ours, theirs in zip(controlled.model.state_dict().values(), fixed.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_gap_is_measured_where_there_are_fewer_items_than_a_list_is_long() -> None:
    stream = fs.synthetic_stream(n_users=300, n_items=14, n_events=2000, seed=2, disadvantaged_share=0.3)
    log = fs.read_events(stream.events.slice(0, 1000), users=stream.users, group="community", advantaged="majority")
    rec = make_recommender("item-item", device="cpu", max_disparity=0.001).fit(log)
    same = make_recommender("item-item", device="cpu", max_disparity=0.001, disparity_metric="ndcg@14").fit(log)
    for one in (rec, same):
        one.update(stream.events.slice(1000), users=stream.users)
    assert len(rec.state.control["periods"]) == 1
    assert rec.state.control == same.state.control


def test_a_generous_target_changes_nothing() -> None:
    rec, plain = kept_up("item-item", max_disparity=0.9), kept_up("item-item", max_disparity=None)
    assert rec.state.event_weights == {}
    for ours, theirs in zip(rec.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_saved_recommender_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    rec = make_recommender("item-item", **QUICK).fit(LOG)
    for t, events in enumerate(PERIODS):
        rec.update(events, users=STREAM.users)
        if t == 2:
            rec.save(tmp_path)
    loaded = fs.load(tmp_path)
    for events in PERIODS[3:]:
        loaded.update(events, users=STREAM.users)
    assert dict(loaded.state.control) == dict(rec.state.control)
    assert dict(loaded.state.event_weights) == dict(rec.state.event_weights)
    for ours, theirs in zip(loaded.model.state_dict().values(), rec.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_forgetting_leaves_the_model_of_the_others_with_their_weights(controlled: fs.FairRecommender) -> None:
    gone = STREAM.users["user_id"][:50]
    twin = copy.deepcopy(controlled)
    twin.forget(gone)
    state = twin.state
    is_known = state.groups.codes != UNKNOWN
    shown = state.groups.hide(state.history.users_with_rare_items(is_known, MIN_USERS_OF_AN_ITEM))
    weights = shown.weights(state.event_weights)
    assert weights is not None
    assert len(np.unique(weights)) > 1
    fresh = ItemItemScorer(state.history.n_users, state.history.n_items)
    fresh.learn(state.history, range(len(state.history)), weights)
    torch.testing.assert_close(state.model.state_dict()["gram"], fresh.gram)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["mf", "item-item", "sasrec"])
def test_recommendations_do_not_depend_on_anybodys_group_given_the_model(model: str) -> None:
    options = {"pretrain_epochs": 1, "update_epochs": 1} if model != "item-item" else {}
    rec = make_recommender(model, **QUICK, **options).fit(LOG).update(PERIODS[0], users=STREAM.users)
    users = STREAM.users["user_id"]
    before = rec.recommend(users, k=10)
    swapped = pa.array(
        [{"majority": "minority", "minority": "majority"}[name] for name in STREAM.users["community"].to_pylist()]
    )
    rec.set_groups(pa.table({"user_id": users, "community": swapped}))
    known = set(LOG.user_ids.ids.to_pylist()) | set(PERIODS[0]["user_id"].to_pylist())
    mine = [user.as_py() in known for user in before["user_id"]]
    assert before.filter(pa.array(mine)).equals(rec.recommend(users, k=10).filter(pa.array(mine)))


@pytest.mark.parametrize("task", ["next", "event"])
def test_newcomers_are_tested_on_the_lists_that_they_would_get(task: Any) -> None:
    """Under a weight that would turn the popularity of items upside down, if it counted there."""
    many, few = [f"m{n}" for n in range(40)], [f"f{n}" for n in range(10)]
    taken = [(user, f"i{n}") for n in range(6) for user in many] + [(user, f"j{n}") for n in range(6) for user in few]
    taken = [taken[at] for at in np.random.default_rng(0).permutation(len(taken))]  # neither is the more recent
    wanted = [(f"n{n}", f"{'i' if n % 5 == 0 else 'j'}{n % 6}") for n in range(30)]
    users, items = zip(*taken, *wanted, strict=True)
    events = pa.table({"user": users, "item": items, "time": range(len(users))})
    people = pa.table({"user": [*many, *few], "group": ["many"] * 40 + ["few"] * 10})
    rec = make_recommender("item-item", device="cpu", group_weight=50.0)
    rec.fit(events.slice(0, len(taken)), users=people, group="group", advantaged="many")
    lists = rec.recommend([user for user, _ in wanted], k=6)
    assert set(lists["source"].to_pylist()) == {"popularity"}
    listed = set(zip(lists["user_id"].to_pylist(), lists["item_id"].to_pylist(), strict=True))
    tested = rec.evaluate(events.slice(len(taken)), task=task, k=6, metrics=["hit"], n_resamples=0)
    assert tested["hit@6"].mean == pytest.approx(np.mean([pair in listed for pair in wanted]))
    assert len(listed & set(wanted)) in (6, 24)  # a list holds one kind of item, not both


def test_the_weights_of_users_are_those_of_their_windows() -> None:
    history, codes = make_recommender("popularity", device="cpu").fit(LOG).state.history, LOG.require_groups().codes
    sampler = NegativeSampler(history.seen, history.users, n_items=history.n_items, device=torch.device("cpu"))
    weights = np.where(codes == 1, 3.0, 1.0)
    cut = [
        cut_windows(
            history,
            range(len(history)),
            codes,
            sampler,
            n_drawn=0,
            length=5,
            size=64,
            activity_exponent=0.5,
            user_weights=w,
        )
        for w in (None, weights)
    ]
    ratio = cut[1].weights / cut[0].weights
    is_behind = codes[cut[1].users] == 1
    assert ratio[is_behind] == pytest.approx(3 * ratio[~is_behind][0])
    n_targets = (cut[1].targets >= 0).sum(axis=1)
    assert (cut[1].weights * n_targets).sum() == pytest.approx(n_targets.sum())


def test_where_the_loss_knows_no_weights_the_controller_sets_lambda() -> None:
    rec = kept_up("mf", pretrain_epochs=2, update_epochs=2)
    plain = kept_up("mf", pretrain_epochs=2, update_epochs=2, max_disparity=None, method="Finetune")
    assert rec.state.event_weights["minority"] > 1
    assert not torch.equal(rec.model.state_dict()["item.weight"], plain.model.state_dict()["item.weight"])


def test_the_softmax_loss_of_a_model_that_reads_no_sequences_takes_no_event_weights() -> None:
    options: dict[str, Any] = {"pretrain_epochs": 2, "update_epochs": 2, "loss": "softmax"}
    rec, plain = kept_up("mf", **options), kept_up("mf", max_disparity=None, method="Finetune", **options)
    assert rec.last_update is not None
    assert rec.last_update.fairness_weight is not None
    assert not torch.equal(rec.model.state_dict()["item.weight"], plain.model.state_dict()["item.weight"])


@pytest.mark.slow
def test_the_lever_is_lambda_where_that_is_asked_for() -> None:
    options: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "batch_size": 512}
    by_weights, by_lambda = (
        kept_up("sasrec", 2, disparity_lever=lever, **options) for lever in ("event-weights", "fairness-loss")
    )
    plain = kept_up("sasrec", 2, max_disparity=None, method="Finetune", **options)
    tables = [rec.model.state_dict()["item.weight"] for rec in (by_weights, by_lambda, plain)]
    assert by_lambda.state.event_weights["minority"] > 1
    assert not any(torch.equal(tables[i], tables[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def a_gap_of(gap: float) -> MeasureGroups:
    """A measurement by which minority is so far behind, and surely."""

    def measure(*_: Any) -> Measured:
        gaps = {"minority": Estimate(gap, 1e-8), "majority": Estimate(-gap, 1e-8)}
        return Measured(gaps)

    return measure


def test_once_the_weights_are_given_back_old_events_count_once_again() -> None:
    """The model is then the one that never had weights, as a fresh fit of the same events is."""
    rec = make_recommender("item-item", device="cpu", max_disparity=0.02).fit(LOG)
    rec.update(PERIODS[0], users=STREAM.users, measure_groups=a_gap_of(0.2))
    assert rec.state.event_weights["minority"] > 1.2
    n_periods = 1
    while rec.state.event_weights:
        rec.update(PERIODS[n_periods], users=STREAM.users, measure_groups=a_gap_of(-0.2))
        n_periods += 1
    everything = STREAM.events.slice(0, 4000 + 1000 * n_periods)
    log = fs.read_events(everything, users=STREAM.users, group="community", advantaged="majority")
    fresh = make_recommender("item-item", device="cpu").fit(log)
    for ours, theirs in zip(rec.model.state_dict().values(), fresh.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("surrogate", "per_unit"), [("hit", 2.0), ("log-likelihood", 0.25)])
def test_lambda_follows_the_log_weight_that_the_controller_decides(surrogate: Any, per_unit: float) -> None:
    """In what the update says, and in what the steps of training had."""
    options: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 4, "surrogate": surrogate}
    rec = make_recommender("mf", device="cpu", max_disparity=0.02, **options).fit(LOG)
    rec.update(PERIODS[0], users=STREAM.users, measure_groups=a_gap_of(0.2))
    log_weight = math.log(rec.last_update.event_weights["minority"])
    assert log_weight > 0.5
    assert rec.last_update.fairness_weight == pytest.approx(per_unit * log_weight)
    assert rec.last_update.report.fairness_weight == pytest.approx(per_unit * log_weight)


@pytest.mark.slow
def test_a_lambda_that_the_controller_sets_ranks_a_sample_of_a_large_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A likelihood is among all items, which are too many to score at every step."""
    monkeypatch.setattr(jobs, "MAX_RANKED_ITEMS", 5)
    recorded: list[TrainingJob] = []
    monkeypatch.setattr(WindowEngine, "__init__", _recording(recorded, WindowEngine.__init__))
    options: dict[str, Any] = {"loss": "bpr", "surrogate": "log-likelihood", "pretrain_epochs": 1, "update_epochs": 1}
    rec = make_recommender("sasrec", device="cpu", embedding_dim=4, max_disparity=0.02, **options).fit(LOG)
    rec.update(PERIODS[0], users=STREAM.users, measure_groups=a_gap_of(0.2))
    before, after = recorded
    assert not before.objective.needs_all_items
    assert before.shared_negatives is None
    assert after.objective.needs_all_items
    assert after.shared_negatives is not None


def _recording(jobs: list[TrainingJob], begin: Callable[..., None]) -> Callable[..., None]:
    def recording(engine: WindowEngine, job: TrainingJob) -> None:
        jobs.append(job)
        begin(engine, job)

    return recording


def test_the_gap_can_be_held_in_a_metric_of_ones_own() -> None:
    def first_hit(lists: Any, truth: Any) -> Any:
        return lists.hits[:, 0].astype(float)

    metrics = {"own@5": first_hit}
    target = MaxGap(0.9, metric="own@5")
    rec = FairRecommender("item-item", device="cpu", target=target, metrics=metrics)
    rec.fit(LOG).update(PERIODS[0], users=STREAM.users)
    control, expected = rec.last_update.control, rec.evaluate(PERIODS[1], users=STREAM.users, n_resamples=0)
    assert "own@5" in expected.metrics
    assert set(control.gaps) == {"majority", "minority"}
    with pytest.raises(ConfigurationError, match="got 'own'"):
        FairRecommender("item-item", target=target)


def test_the_controller_starts_from_the_group_weight() -> None:
    rec = make_recommender("item-item", group_weight=3.0, device="cpu", max_disparity=0.9).fit(LOG)
    assert rec.state.event_weights == {"minority": 3.0}
    rec.update(PERIODS[0], users=STREAM.users)
    assert rec.state.event_weights.get("minority", 1.0) < 3.0  # there is slack


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_disparity": -0.1}, "max_disparity must be > 0, got -0.1"),
        ({"max_disparity": 1.5}, "max_disparity must be < 1, got 1.5"),
        ({"max_group_loss": 0.1}, "max_group_loss goes with max_disparity"),
        ({"max_disparity": 0.1, "disparity_lever": "event-weights", "model": "mf"}, "takes no event weights"),
        ({"max_disparity": 0.1, "disparity_metric": "ndgc@20"}, "ndgc"),
        ({"max_disparity": 0.1, "disparity_task": "remain"}, "disparity_task must be one of 'event' or 'next'"),
    ],
)
def test_what_cannot_be_a_target_is_said_at_once(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        make_recommender(**{"model": "item-item", "device": "cpu", **options})
