"""The task `event` in a run: its numbers by hand, what is stored, pooled and compared, and where it is left out."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import fairstream
from fairstream import ConfigurationError, EventLog, Record, Run, RunConfig, compare
from fairstream.evaluation import DEFAULT_METRICS
from fairstream.experiments import pooled
from fairstream.experiments.identity import run_id
from fairstream.models import TASKS, Task
from support import FAST, make_recommender

LISTS = ("next", "remain")


def finished(log: EventLog, method: str = "finetune", **options: Any) -> Run:
    run = fairstream.run(log, method, **{"model": "mf", **FAST, **options})
    list(run)
    return run


Model = Callable[[set[int]], Any]
"""What a user has had → the scores of all items, or None if there is nothing to say."""


def popularity(users: Any, items: Any) -> Model:
    counts = np.bincount(items).astype(float)
    return lambda had: counts if had else None


def item_item(users: Any, items: Any) -> Model:
    """Each item regressed on all others, by the formula: users count 1 / √n, the ridge is 10 mean diagonals."""
    x = np.zeros((users.max() + 1, items.max() + 1))
    x[users, items] = 1
    gram = x.T @ (x / np.sqrt(np.maximum(1, x.sum(axis=1, keepdims=True))))
    p = np.linalg.inv(gram + 10 * gram.diagonal().mean() * np.eye(len(gram)))
    b = np.eye(len(p)) - p / p.diagonal()

    def score(had: set[int]) -> Any:
        known = [item for item in had if item < len(b)]
        return b[known].sum(axis=0) if known else None

    return score


def by_hand(
    users: Any, items: Any, start: int, stop: int, model: Callable[..., Model], *, precision: float, k: int = 20
) -> dict[int, Any]:
    """NDCG of the next event: plain NumPy, one event at a time; the least and the most at this precision of scores."""
    n_items = items[:start].max() + 1
    recent = np.bincount(items[:start], 0.5 ** (np.arange(start)[::-1] / (0.1 * start)), n_items)
    scores_of = model(users[:start], items[:start])
    had: dict[int, set[int]] = defaultdict(set)
    for user, item in zip(users[:start].tolist(), items[:start].tolist(), strict=True):
        had[user].add(item)
    values = defaultdict(list)
    for user, item in zip(users[start:stop].tolist(), items[start:stop].tolist(), strict=True):
        value = np.zeros(2)
        if item < n_items:
            scores = scores_of(had[user])
            scores = (recent if scores is None else scores).copy()
            mine = scores[item]
            scores[[item, *(other for other in had[user] if other < n_items)]] = -np.inf
            rank = np.array([1 + (scores >= mine + shift).sum() for shift in (-precision, precision)])  # with every tie
            value = np.where(rank <= k, 1 / np.log2(rank + 1), 0.0)
        values[user].append(value)
        had[user].add(item)
    return {user: np.mean(own, axis=0) for user, own in values.items()}


def assert_as_by_hand(run: Run, t: int, model: Callable[..., Model] = popularity, *, precision: float = 0.0) -> None:
    def assert_within(found: Any, bounds: list[Any]) -> None:
        if not bounds:
            assert found is None
            return
        least, most = np.mean(bounds, axis=0)
        assert least - 1e-12 <= found <= most + 1e-12

    result = run.pretrained if t == 0 else run.results[t - 1]
    assert result is not None
    found, groups = result.tasks["event"], run.groups
    span = run.periods.span(t + 1)
    expected = by_hand(run.log.users, run.log.items, span.start, span.stop, model, precision=precision)
    assert np.ptp(np.mean(list(expected.values()), axis=0)) <= 1000 * precision  # hardly any event is undecided
    assert found.tested.users.tolist() == sorted(expected)
    values = found.tested.values_of(DEFAULT_METRICS["ndcg"])
    for user, value in zip(sorted(expected), values.tolist(), strict=True):
        assert_within(value, [expected[user]])
    assert_within(found["ndcg@20"].mean, list(expected.values()))
    for code, name in enumerate(groups.names):
        own = [bounds for user, bounds in expected.items() if groups.codes[user] == code]
        assert_within(found["ndcg@20"].by_group[name], own)
    n_known = run.log.n_users_after(span.start)
    for part, is_new in (("cold_users", True), ("warm_users", False)):
        own = [bounds for user, bounds in expected.items() if (user >= n_known) == is_new]
        assert_within(found.slices[part]["ndcg@20"].mean, own)


# ── numbers ──────────────────────────────────────────────────────────────────────────────


ORACLES = [("popularity", popularity, 0.0), ("item-item", item_item, 1e-6)]  # B is in float32


@pytest.mark.parametrize(("name", "model", "precision"), ORACLES)
def test_values_at_each_event_are_what_a_few_lines_of_numpy_say(
    log: EventLog, name: str, model: Callable[..., Model], precision: float
) -> None:
    run = finished(log, model=name, model_settings={}, tasks="event")
    assert run.config.tasks == ("event",)
    for t in range(4):
        assert_as_by_hand(run, t, model, precision=precision)


def assert_first_period_as_by_hand(
    folder: Path, oracle: tuple[str, Callable[..., Model], float], **groups: str
) -> None:
    name, model, precision = oracle
    log = fairstream.read_events(folder, **groups)
    run = fairstream.run(log, "finetune", model=name, tasks=["event"], n_resamples=0, device="cpu")
    run.begin()
    assert_as_by_hand(run, 0, model, precision=precision)


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ORACLES)
def test_values_on_the_first_period_of_modcloth(paper_data: Path, oracle: Any) -> None:
    assert_first_period_as_by_hand(paper_data / "modcloth", oracle, group="body_shape", advantaged="Small")


@pytest.mark.slow
def test_popularity_on_the_first_period_of_movielens(paper_data: Path) -> None:
    assert_first_period_as_by_hand(paper_data / "movielens-1m", ORACLES[0], group="gender", advantaged="M")


def test_a_recommender_evaluates_the_same_events_alike(stream: Any, log: EventLog) -> None:
    run = finished(log, model="mf")
    end, stop = run.periods.ends[0], run.periods.ends[1]
    options = {
        name: FAST[name] for name in ("pretrain_epochs", "update_epochs", "model_settings", "batch_size", "device")
    }
    rec = make_recommender(method="finetune", **{"model": "mf", **options})
    first, later = stream.events.slice(0, end), stream.events.slice(end, stop - end)
    rec.fit(fairstream.read_events(first, users=stream.users, group="community", advantaged="majority"))
    assert run.pretrained is not None
    evaluations = {}
    for task in TASKS:
        evaluations[task] = rec.evaluate(later, users=stream.users, task=task, min_group_size=1, n_resamples=0)
        assert evaluations[task]["ndcg@20"] == run.pretrained.tasks[task]["ndcg@20"]
    assert rec.evaluate(later, users=stream.users, n_resamples=0).n_users == evaluations["next"].n_users
    with pytest.raises(ConfigurationError, match="task must be one of event, moment, next, got 'remain'"):
        rec.evaluate(later, users=stream.users, task=cast("Task", "remain"))


# ── which tasks ──────────────────────────────────────────────────────────────────────────


def test_the_tasks_of_a_run_are_those_of_its_protocol_unless_they_are_named(log: EventLog) -> None:
    assert Run(log, RunConfig(model="mf")).config.tasks == ("event", "next", "remain")
    assert Run(log, RunConfig(protocol="paper", batch_size=64)).config.tasks == ("remain", "next")
    assert Run(log, RunConfig(model="mf", method="Rerank")).config.tasks == ("remain", "next")
    run = finished(log, tasks=["remain", "event"])
    document = json.loads(json.dumps(run.document(), allow_nan=False))
    assert list(document["summary"]) == list(document["slices"]) == ["remain", "event"]
    for period in (document["pretrained"], *document["periods"]):
        assert list(period["tasks"]) == ["remain", "event"]
    assert document["config"]["tasks"] == ["remain", "event"]


@pytest.mark.slow
def test_what_was_not_asked_for_changes_no_number(log: EventLog) -> None:
    everything = finished(log).document()
    for tasks in (("event",), ("next",), ("remain",)):
        alone = finished(log, tasks=tasks).document()
        for task in tasks:
            assert alone["summary"][task] == everything["summary"][task]
            assert alone["slices"][task] == everything["slices"][task]


@pytest.mark.parametrize("options", [{"protocol": "paper"}, {"protocol": "paper+ranking+leak"}])
def test_under_sampled_candidates_or_the_papers_ndcg_it_is_refused_before_anything_is_trained(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"needs the true NDCG; use the protocol strict"):
        RunConfig(tasks=("event",), **{"model": "mf", **options})
    assert RunConfig(tasks=("event",), protocol="paper+ranking+ndcg").tasks == ("event",)


def test_reranking_and_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Rerank chooses the lists of all users together"):
        RunConfig(model="mf", method="Rerank", tasks=("event",))
    with pytest.raises(ConfigurationError, match="task must be one of event, moment, next, remain, got 'later'"):
        RunConfig(model="mf", tasks=("event", "later"))


def test_a_run_under_a_repaired_protocol_leaves_out_newcomers(log: EventLog) -> None:
    run = finished(log, tasks=("event",), protocol="paper+ranking+ndcg")
    for result in run.results:
        assert not result.tasks["event"].tested.is_cold.any()
        assert result.tasks["event"].slices["history_0"].n_users == 0


@pytest.mark.slow
@pytest.mark.parametrize("restart", ["never", "on-degradation"])
def test_what_is_learned_does_not_depend_on_what_is_evaluated(log: EventLog, restart: str) -> None:
    """A restart is decided by how well the period before was predicted: Task-N."""
    options = {"restart": restart, "learning_rate": 0.05, "n_periods": 7}
    only_events, lists = (finished(log, "FADE", tasks=tasks, **options) for tasks in (("event",), LISTS))
    assert bool(lists.state.memory) == (restart == "on-degradation")  # the quality that later ones are measured by
    assert only_events.state.memory == lists.state.memory
    for one, other in zip(only_events.results, lists.results, strict=True):
        assert (one.update.step, one.advantaged) == (other.update.step, other.advantaged)
    weights = ({name: value.tolist() for name, value in run.learned().items()} for run in (only_events, lists))
    assert next(weights) == next(weights)


# ── stored ───────────────────────────────────────────────────────────────────────────────


def test_ids_follow_the_tasks_and_those_of_the_papers_runs_stay(log: EventLog) -> None:
    def name(**options: Any) -> str:
        return run_id(log, RunConfig(**{"model": "mf", **FAST, **options}))

    ids = [name(), name(tasks=("event",)), name(tasks=LISTS), name(tasks=("remain", "next"))]
    assert len(set(ids)) == 4
    assert name(protocol="paper") == name(protocol="paper", tasks=("remain", "next"))


def test_a_run_comes_back_from_parquet_and_json_with_every_event(log: EventLog, tmp_path: Path) -> None:
    run = finished(log, tasks=("event", "next"), metrics={"n@20": lambda lists, truth: truth.history.counts * 1.0})
    (tmp_path / "run.json").write_text(json.dumps(run.document(), allow_nan=False))
    (tmp_path / "run.parquet").write_bytes(Record.from_document(run.document()).content())
    for path in tmp_path.iterdir():
        record = Record.read(path)
        assert record.document == json.loads(json.dumps(run.document()))
        for result in run.results:
            ours, theirs = record.tests[result.t, "event"], result.tasks["event"].tested
            assert theirs.n_lists is not None
            assert ours.n_lists.tolist() == theirs.n_lists.tolist()
            assert ours.hits.tolist() == theirs.hits.tolist()
            assert ours.values["n@20"].tolist() == theirs.values["n@20"].tolist()
            assert record.tests[result.t, "next"].n_lists is None


@pytest.fixture(scope="module")
def seeds(log: EventLog) -> dict[str, list[Record]]:
    """Two methods from two seeds."""
    return {
        method: fairstream.run_seeds(log, [0, 1], model="mf", method=method, n_workers=1, **FAST)
        for method in ("finetune", "fade")
    }


@pytest.mark.slow
def test_seeds_are_pooled_user_by_user(seeds: dict[str, list[Record]]) -> None:
    summary = pooled(seeds["fade"])["summary"]["event"]["ndcg@20"]
    each = [record.about["summary"]["event"]["ndcg@20"] for record in seeds["fade"]]
    assert summary["mean"] == pytest.approx(np.mean([part["mean"] for part in each]))
    sizes = [part["abs_performance_disparity"] for part in each]
    assert summary["abs_performance_disparity"] == pytest.approx(np.mean(sizes))


@pytest.mark.slow
def test_methods_are_compared_on_the_events_that_all_have(seeds: dict[str, list[Record]], log: EventLog) -> None:
    records = [record for part in seeds.values() for record in part]
    comparison = compare(records, task="event", n_resamples=50)
    assert comparison.task == "event"
    for contender, method in zip(comparison.contenders, seeds, strict=True):
        means = [record.about["summary"]["event"]["ndcg@20"]["mean"] for record in seeds[method]]
        assert contender.performance.value == pytest.approx(np.mean(means))
    warm = compare(records, task="event", part="warm", n_resamples=50)
    assert warm.n_users < comparison.n_users
    assert compare(records, n_resamples=50).task == "remain"


@pytest.mark.slow
def test_runs_are_compared_on_a_task_that_they_share(log: EventLog) -> None:
    def runs(first: Any, second: Any) -> list[Run]:
        return [finished(log, "finetune", tasks=first), finished(log, "fade", tasks=second)]

    assert compare(runs(("event", "next"), ("next", "event")), n_resamples=50).task == "event"
    assert compare(runs(("event", "next"), ("next",)), n_resamples=50).task == "next"
    with pytest.raises(ConfigurationError, match="task must be one of next, got 'event'"):
        compare(runs(("event", "next"), ("next",)), task="event")
    with pytest.raises(ConfigurationError, match="share no task"):
        compare(runs(("event",), ("next",)))
    # the same runs in two records, each with a task of its own
    both = [*runs(("event",), ("event",)), *runs(("next",), ("next",))]
    for task in ("event", "next"):
        assert compare(both, task=task, n_resamples=50).task == task
