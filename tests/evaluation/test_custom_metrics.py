"""Metrics of one's own: of one value a user or one number for all, through evaluate, run and by registered name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import fairstream
from fairstream import ConfigurationError, RunConfig
from fairstream.data import EventLog, Groups, History, read_events
from fairstream.evaluation import METRICS, Evaluation, Evaluator, Lists, Truth, UserResults, resolve_metrics
from fairstream.models import ContextBuilder, MFScorer
from fairstream.randomness import Randomness
from support import make_recommender

FAST: dict[str, Any] = {"pretrain_epochs": 1, "update_epochs": 1, "device": "cpu", "embedding_dim": 8}


def coverage(lists: Lists, truth: Truth) -> float:
    """The share of the catalogue that is in any list."""
    return len(np.unique(lists.items[lists.items >= 0])) / truth.n_items


def novelty(lists: Lists, truth: Truth) -> Any:
    """Per user: the mean of −log₂ of the share of all events that the listed items have."""
    popularity = (truth.popularity + 1) / (truth.popularity.sum() + truth.n_items)
    return np.where(lists.items >= 0, -np.log2(popularity[lists.items]), 0.0).mean(axis=1)


@pytest.fixture(scope="module")
def stream() -> Any:
    return fairstream.synthetic_stream(n_users=120, n_items=70, n_events=3000, seed=0)


@pytest.fixture(scope="module")
def log(stream: Any) -> EventLog:
    return read_events(stream.events, users=stream.users)


@pytest.fixture
def registered() -> Iterator[None]:
    fairstream.register_metric("coverage", coverage)
    fairstream.register_metric("novelty", novelty)
    yield
    for name in ("coverage", "novelty"):  # a registry has no public way to remove a name
        del METRICS._parts[name], METRICS._names[name]


# ── the lists and the truth ──────────────────────────────────────────────────────────────


def small(metrics: Any, *, k: int = 3, **options: Any) -> tuple[Evaluation, dict[str, Any]]:
    """Eight users in two groups, the last two of them cold, ten items; and what the metric was given."""
    rng = np.random.default_rng(0)
    users, items = np.array([0, 1, 1, 2, 3, 4, 5, 6, 7]), np.array([1, 2, 3, 4, 5, 6, 11, 8, 9])
    pairs = np.setdiff1d(rng.permutation(6 * 10)[:40], 10 * users + items)  # what is tested has not happened yet
    history = History.of(pairs // 10, pairs % 10, n_users=6, n_items=10)
    groups = Groups.from_values("g", list("abababab"), advantaged="a")
    torch.manual_seed(0)
    model = MFScorer(6, 10, embedding_dim=4).eval()
    evaluator = Evaluator(k, groups, Randomness(0), metrics=metrics, **options)
    contexts = ContextBuilder(model.history_length, history, np.ones(6, np.bool_))
    evaluation = evaluator.evaluate(model, users, items, history=history, contexts=contexts, t=0)
    return evaluation, {"history": history, "users": users, "items": items, "groups": groups}


def test_a_metric_sees_lists_positives_history_and_popularity_of_the_moment() -> None:
    calls: list[tuple[Lists, Truth]] = []

    def record(lists: Lists, truth: Truth) -> Any:
        calls.append((lists, truth))
        return np.zeros(len(lists.items))

    _, events = small({"mine": record})
    lists, truth = calls[0]
    history = events["history"]
    assert lists.items.shape == lists.scores.shape == lists.hits.shape == (8, 3)
    assert truth.users.tolist() == list(range(8))
    assert truth.n_items == 10
    assert truth.n_positives.tolist() == [1, 2, 1, 1, 1, 1, 1, 1]
    assert truth.popularity.tolist() == np.bincount(history.items, minlength=10).tolist()
    for user in range(8):
        seen, positives = history.items[history.users == user], events["items"][events["users"] == user]
        assert truth.positives[user].tolist() == positives.tolist()
        assert truth.history[user].tolist() == sorted(seen.tolist())
        listed = lists.items[user][lists.items[user] >= 0]
        assert not set(listed.tolist()) & set(seen.tolist())
        assert lists.hits[user].tolist() == np.isin(lists.items[user], positives).tolist()
        assert (np.diff(lists.scores[user][: len(listed)]) <= 0).all()


def test_the_built_in_metrics_are_functions_of_lists_and_truth_too() -> None:
    """Passed as one's own under another name, they give the same numbers as by name."""
    own, _ = small({f"my_{name}": partial(lambda f, lists, truth: f(lists, truth), f) for name, f in METRICS.items()})
    named, _ = small(list(METRICS))
    for name in METRICS:
        assert own[f"my_{name}@3"] == named[f"{name}@3"]
        for part in named.slices:
            assert own.slices[part][f"my_{name}@3"] == named.slices[part][f"{name}@3"]


def test_the_cutoff_of_a_name_cuts_the_lists() -> None:
    lengths = []

    def length(lists: Lists, truth: Truth) -> float:
        lengths.append(lists.k)
        return float(lists.k)

    evaluation, _ = small({"length@2": length, "length": length, "length@5": length})
    assert {name: score.mean for name, score in evaluation.metrics.items()} == {
        "length@2": 2.0,
        "length@3": 3.0,
        "length@5": 5.0,
    }
    by_name, _ = small(["recall@2", "recall@5"])
    assert by_name["recall@2"] == small(["recall"], k=2)[0]["recall@2"]
    assert by_name["recall@5"] == small(["recall"], k=5)[0]["recall@5"]


def test_a_number_for_all_is_computed_on_each_groups_users_and_has_no_interval() -> None:
    evaluation, events = small({"users": lambda lists, truth: float(truth.users.sum())}, n_resamples=20)
    score = evaluation["users@3"]
    codes = events["groups"].codes
    sums = {name: float(np.flatnonzero(codes == code).sum()) for code, name in enumerate(events["groups"].names)}
    assert score.mean == 28
    assert score.by_group == sums
    assert score.performance_disparity == sums["a"] - sums["b"]
    assert score.abs_performance_disparity == abs(sums["a"] - sums["b"])
    assert (score.interval, score.disparity.interval, score.disparity.p_value) == (None, None, None)
    assert evaluation.slices["warm_users"]["users@3"].mean == sum(range(6))
    assert evaluation.slices["cold_users"]["users@3"].mean == 6 + 7
    assert evaluation.slices["no_group"]["users@3"].mean is None
    assert evaluation.slices["cold_items"]["users@3"].mean == 5  # who alone has a positive that nobody had


def test_groups_with_too_few_users_have_no_number() -> None:
    evaluation, _ = small({"users": lambda lists, truth: float(len(truth.users))}, min_group_size=5)
    score = evaluation["users@3"]
    assert score.mean == 8
    assert (score.by_group, score.gaps, score.performance_disparity) == ({"a": None, "b": None}, {}, None)


@pytest.mark.parametrize(
    "metric",
    [lambda lists, truth: np.zeros(3), lambda lists, truth: lists.hits, lambda lists, truth: np.full(8, np.nan)],
)
def test_any_other_result_is_an_error(metric: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the metric mine@3 must return one finite value for each of the 8"):
        small({"mine": metric})


@pytest.mark.parametrize("metrics", [["nonsense"], ["nonsense@5"], ["ndcg@0"], ["ndcg@x"], ["@5"], {"mine": 3}])
def test_a_name_that_there_is_not_is_one_clear_error(metrics: Any, log: EventLog) -> None:
    for call in (
        lambda: resolve_metrics(metrics, 20, {}),
        lambda: small(metrics),
        lambda: make_recommender("mf", metrics=metrics, **FAST),
        lambda: fairstream.run(log, model="mf", metrics=metrics, **FAST),
    ):
        with pytest.raises(ConfigurationError, match="metric") as caught:
            call()
        assert "\n" not in str(caught.value)


# ── end to end ───────────────────────────────────────────────────────────────────────────


def check(scores: Any) -> None:
    assert 0 < scores["coverage@10"].mean <= 1
    assert max(scores["coverage@10"].by_group.values()) <= scores["coverage@10"].mean
    assert scores["coverage@10"].disparity.interval is None
    assert scores["novelty@10"].mean > 0
    assert scores["novelty@10"].disparity.interval is not None
    assert np.isfinite(scores["novelty@10"].performance_disparity)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("metrics", [{"coverage@10": coverage, "novelty@10": novelty}, ["Coverage@10", "novelty@10"]])
def test_evaluate_with_metrics_of_ones_own_and_by_name(stream: Any, metrics: Any) -> None:
    first, later = stream.events.slice(0, 2200), stream.events.slice(2200)
    recommender = make_recommender("mf", **FAST).fit(read_events(first, users=stream.users))
    evaluation = recommender.evaluate(later, metrics=metrics, n_resamples=50)
    assert len(evaluation.metrics) == 2
    scores = {name.lower(): score for name, score in evaluation.metrics.items()}
    check(scores)
    given = make_recommender("mf", metrics=metrics, restart="on-degradation", **FAST)
    given.fit(read_events(first, users=stream.users))
    assert given.evaluate(later, n_resamples=50).metrics == evaluation.metrics
    assert given.update(later).last_update is not None  # the strategy still gets the quality that it needs


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
def test_a_run_with_metrics_of_ones_own_and_by_name(log: EventLog) -> None:
    options = {"k": 10, "min_group_size": 5, "n_periods": 4, "n_resamples": 20, "restart": "on-degradation"}
    options |= {**FAST, "model_settings": {"embedding_dim": FAST["embedding_dim"]}}
    del options["embedding_dim"]
    own = fairstream.run(
        log,
        model="mf",
        metrics={"my_coverage": coverage, "my_novelty@10": novelty, "ndcg@5": METRICS["ndcg"]},
        **options,
    )
    named = fairstream.run(log, metrics=["coverage@10", "novelty@10", "ndcg@5"], **{"model": "mf", **options})
    results = list(own)
    for result, by_name in zip(results, named, strict=True):
        check(by_name.tasks["next"])
        assert list(result.tasks["next"].metrics) == ["my_coverage@10", "my_novelty@10", "ndcg@5"]
        assert list(result.tasks["next"].metrics.values()) == list(by_name.tasks["next"].metrics.values())
    document, summary = own.document(), own.summary()["next"]
    json.dumps(document, allow_nan=False)
    for name in ("my_coverage@10", "my_novelty@10", "ndcg@5"):
        scores = [result.tasks["next"][name] for result in results]
        assert summary[name]["mean"] == pytest.approx(np.mean([score.mean for score in scores]))
        gaps = [score.performance_disparity for score in scores]
        assert summary[name]["performance_disparity"] == pytest.approx(np.mean(gaps))
        assert summary[name]["abs_performance_disparity"] == pytest.approx(np.mean(np.abs(gaps)))
        assert document["slices"]["next"]["warm_users"][name]["mean"] is not None
    stored = UserResults.from_dict(json.loads(json.dumps(document["periods"][0]["tasks"]["next"]["tested"])))
    assert stored.values["my_novelty@10"].tolist() == results[0].tasks["next"].tested.values["my_novelty@10"].tolist()
    assert stored.totals == results[0].tasks["next"].tested.totals
    assert RunConfig(model="mf", metrics=("coverage@10",)).metrics == ("coverage@10",)
    with pytest.raises(ConfigurationError, match="k must be at least the cut-off of every metric"):
        RunConfig(model="mf", k=10, metrics=("coverage@20",))
