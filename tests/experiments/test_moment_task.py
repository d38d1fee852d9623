"""The task `moment` wherever a task is named: runs, stores, comparisons, explanations, frontiers, targets, reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fairstream as fs
from fairstream import ConfigurationError, EventLog, Record, Run, compare
from fairstream.experiments.explain import explain_gap
from support import FAST, make_recommender

STREAM = fs.synthetic_stream(n_users=150, n_items=60, n_events=4000, seed=0)
BOTH = ("event", "moment")


def log_of(*, ties: bool = True, unix: bool = False) -> EventLog:
    """The stream with its times in whole days, or as they are; plain numbers, or Unix times."""
    times = STREAM.events["time"].to_numpy()
    times = np.floor(times / np.ptp(times) * 300).astype(np.int64) if ties else np.arange(len(times))
    events = STREAM.events.set_column(2, "time", [pa.array(times * 86_400 + 10**9 if unix else times)])
    return fs.read_events(events, users=STREAM.users, group="community", advantaged="majority")


@pytest.fixture(scope="module")
def log() -> EventLog:
    return log_of()


PARTS = tuple(log_of().to_arrow().drop(["group"])[at] for at in (slice(2800), slice(2800, 3400), slice(3400, 4000)))
PEOPLE: dict[str, Any] = {"users": STREAM.users, "group": "community", "advantaged": "majority"}


def finished(log: EventLog, model: str = "item-item", **options: Any) -> Run:
    given = {**FAST, "tasks": BOTH, **options, "model": model}
    if model != "mf":
        given["model_settings"] = {}
    run = fs.run(log, **{"method": "finetune", **given})
    list(run)
    return run


@pytest.fixture(scope="module")
def run(log: EventLog) -> Run:
    return finished(log, n_resamples=50, explain=True)


# ── numbers ──────────────────────────────────────────────────────────────────────────────


def test_where_all_times_differ_it_is_the_task_event() -> None:
    for result in finished(log_of(ties=False), n_resamples=20).results:
        event, moment = (result.tasks[task] for task in BOTH)
        assert event.to_dict() == moment.to_dict()
        assert event.tested.to_dict() == moment.tested.to_dict()


def test_a_request_is_a_user_at_a_time(run: Run) -> None:
    """Also if the times are numbers that only order the events."""
    assert run.log.seconds is None
    for result in run.results:
        tested, at = result.tasks["moment"].tested, run.periods.span(result.t + 1)
        events = np.stack([run.log.users[at], run.log.times[at]], axis=1)
        expected = np.unique(np.unique(events, axis=0)[:, 0], return_counts=True)
        assert tested.n_lists is not None
        assert (tested.users.tolist(), tested.n_lists.tolist()) == tuple(part.tolist() for part in expected)
        assert tested.n_positives.sum() == len(events) > len(tested.hits)


def test_unix_times_have_the_same_moments(run: Run) -> None:
    again = finished(log_of(unix=True), n_resamples=50)
    assert again.log.seconds is not None
    for ours, theirs in zip(run.results, again.results, strict=True):
        assert ours.tasks["moment"].tested.to_dict() == theirs.tasks["moment"].tested.to_dict()


def test_the_order_in_the_file_changes_nothing() -> None:
    """For a model that reads the user's items in no order; in the task `event` it changes even that one's result."""
    past, later, _ = PARTS
    rec = make_recommender("item-item", device="cpu").fit(past, **PEOPLE)
    order = np.random.default_rng(0).permutation(len(later))
    ours, theirs = (
        {task: rec.evaluate(part, users=STREAM.users, task=task, n_resamples=0)["ndcg@20"].mean for task in BOTH}
        for part in (later, later.take(order))
    )
    assert ours["moment"] == pytest.approx(theirs["moment"], abs=1e-12)
    assert ours["event"] != pytest.approx(theirs["event"], abs=1e-6)


# ── wherever a task is named ─────────────────────────────────────────────────────────────


def test_a_run_comes_back_from_parquet_and_json_with_every_moment(run: Run, tmp_path: Path) -> None:
    document = run.document()
    (tmp_path / "run.json").write_text(json.dumps(document, allow_nan=False))
    (tmp_path / "run.parquet").write_bytes(Record.from_document(document).content())
    for path in tmp_path.iterdir():
        record = Record.read(path)
        assert record.document == json.loads(json.dumps(document))
        for result in run.results:
            assert record.tests[result.t, "moment"].to_dict() == result.tasks["moment"].tested.to_dict()


def test_it_has_regret_a_gap_and_slices(run: Run) -> None:
    score = run.summary()["moment"]["ndcg@20"]
    assert set(score["regret"]) == set(score["attainable"]) == {"majority", "minority"}
    assert score["inherent_gap"] is not None
    assert "history_0" in run.document()["slices"]["moment"]
    assert explain_gap(run.record(), task="moment").task == "moment"
    assert set(run.results[-1].explanation) == set(BOTH)


def test_runs_are_compared_and_reported_on_it(run: Run, log: EventLog) -> None:
    other = finished(log, "popularity")
    comparison = compare([run, other], task="moment", n_resamples=50)
    means = [one.summary()["moment"]["ndcg@20"]["mean"] for one in (run, other)]
    assert [each.performance.value for each in comparison.contenders] == pytest.approx(means)
    report = fs.fairness_report(run, task="moment").to_dict()
    assert "each moment of the next period" in json.dumps(report)


def test_the_recommender_evaluates_and_steers_by_it() -> None:
    first, second, third = PARTS
    rec = make_recommender("item-item", device="cpu", target="least-regret", target_task="moment")
    rec.fit(first, **PEOPLE).update(second, users=STREAM.users)
    assert rec.last_update is not None
    assert rec.last_update.decision is not None
    options: dict[str, Any] = {"users": STREAM.users, "n_resamples": 0}
    tested = {task: rec.evaluate(third, task=task, **options).tested for task in ("event", "moment", "next")}
    n_lists = {task: len(each.hits) for task, each in tested.items()}
    assert n_lists["next"] < n_lists["moment"] < n_lists["event"] == tested["moment"].n_positives.sum()
    with pytest.raises(ConfigurationError, match="task must be one of event, moment, next, got 'remain'"):
        rec.evaluate(third, task="remain")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="task must be one of event, next, got 'moment'"):
        rec.recommend([1], task="moment")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="task must be one of event, moment, next, got 'later'"):
        fs.MaxGap(0.1, task="later")  # type: ignore[arg-type]


def test_the_blend_replays_the_last_moments_of_its_fit() -> None:
    """`fit` replays the last 5 % of its events, here the last day, by the task of the target."""
    day, user, number = (axis.ravel() for axis in np.meshgrid(range(20), range(60), range(3), indexing="ij"))
    events = pa.table({"user": user, "item": (7 * user + 3 * day + number) % 90, "time": day})
    people = pa.table({"user": range(60), "group": ["few", "many"] * 30})
    replays = {}
    for task in BOTH:
        options = {"target": "least-regret", "target_task": task, "pretrain_epochs": 1, "embedding_dim": 8}
        rec = make_recommender("blend", device="cpu", **options).fit(events, users=people, group="group")
        replays[task] = rec.state.replays["periods"][0]["groups"]
    assert replays["event"] != replays["moment"]


def test_a_frontier_is_measured_on_it(log: EventLog) -> None:
    options: dict[str, Any] = {"n_periods": 2, "n_resamples": 20, "min_group_size": 5, "levels": [1, 3]}
    frontier = make_recommender("item-item", device="cpu").frontier(log, task="moment", lever="group_weight", **options)
    assert frontier.task == "moment"
    assert "at each moment" in str(frontier)


def test_a_frontier_of_known_events_needs_their_times() -> None:
    stream = fs.synthetic_stream(n_users=40, n_items=30, n_events=600, seed=0)
    rec = make_recommender("item-item", device="cpu").fit(stream.events, users=stream.users, group="community")
    with pytest.raises(fs.ConfigurationError, match="the task moment needs the time of each event"):
        rec.frontier(task="moment")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"protocol": "paper", "method": "FADE"}, "the task moment ranks all known items"),
        ({"method": "Rerank"}, "the task moment makes a list for one user at a time"),
    ],
)
def test_what_cannot_be_tested_at_moments_is_an_error(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        fs.RunConfig(model="mf", tasks=("moment",), **options)


# ── ties ─────────────────────────────────────────────────────────────────────────────────


def test_a_run_says_how_many_tested_events_have_the_time_of_the_previous_one(run: Run) -> None:
    log, (first, *_, last) = run.log, run.periods.ends
    latest: dict[int, int] = {}
    n_tied = 0
    for at, (user, time) in enumerate(zip(log.users.tolist(), log.times.tolist(), strict=True)):
        n_tied += first <= at < last and latest.get(user) == time
        latest[user] = time
    assert run.document()["data"]["n_tied"] == n_tied > 0
    said = f"{100 * n_tied / (last - first):.1f} % of the tested events have the same time as the user's previous one"
    assert any(note.startswith(said) for note in run.notes)


@pytest.mark.parametrize(("ties", "unix", "n_tied"), [(False, False, None), (False, True, 0)])
def test_without_ties_a_run_says_nothing(ties: bool, unix: bool, n_tied: int | None) -> None:
    run = Run(log_of(ties=ties, unix=unix), fs.RunConfig(model="mf", **FAST))
    assert run.about()["data"]["n_tied"] == n_tied
    assert not [note for note in run.notes if "same time" in note]


def test_a_run_without_the_task_event_does_not_depend_on_the_order(log: EventLog) -> None:
    run = Run(log, fs.RunConfig(model="mf", **{**FAST, "tasks": ("next", "moment")}))
    assert not [note for note in run.notes if "same time" in note]
