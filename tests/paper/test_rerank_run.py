"""A run of Rerank: Finetune's model, other lists, and what choosing them took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import fairstream
from fairstream import ConfigurationError, EventLog, Record, RunConfig, read_events
from fairstream.pages.score_tables import period_table
from support import make_recommender

pytestmark = pytest.mark.slow

FAST = {
    "pretrain_epochs": 4,
    "update_epochs": 2,
    "model_settings": {"embedding_dim": 8},
    "batch_size": 64,
    "n_periods": 4,
    "k": 10,
    "min_group_size": 1,
    "n_resamples": 0,
    "device": "cpu",
}
both_protocols = pytest.mark.parametrize("protocol", ["strict", "paper"])


def make_run(log: EventLog, method: str, **options: Any) -> Any:
    return fairstream.run(log, method, **{"model": "mf", **FAST, **options})


def finished(log: EventLog, method: str = "Rerank", **options: Any) -> Any:
    run = make_run(log, method, **options)
    list(run)
    return run


def label_gaps(run: Any) -> list[float]:
    """Of every judgement; fails where there is none."""
    assert run.pretrained is not None
    reports = [judged.reranking for result in (run.pretrained, *run.results) for judged in result.tasks.values()]
    return [report.label_gap for report in reports if report]


@both_protocols
@pytest.mark.parametrize("tolerance", [0.001, 0.01])
def test_the_lists_that_are_judged_are_within_the_tolerance(log: EventLog, protocol: str, tolerance: float) -> None:
    before, after = (finished(log, protocol=protocol, rerank_tolerance=value) for value in (1.0, tolerance))
    assert len(label_gaps(after)) == len(label_gaps(before)) == 8
    assert max(abs(gap) for gap in label_gaps(before)) > tolerance
    assert max(abs(gap) for gap in label_gaps(after)) <= tolerance + 1e-12
    if tolerance == 0.001:  # with the other, no hit is among the few that leave a list
        assert before.summary() != after.summary()


@both_protocols
def test_without_a_need_to_choose_it_is_finetune(log: EventLog, protocol: str) -> None:
    plain, free = (make_run(log, method, protocol=protocol, rerank_tolerance=1.0) for method in ("Finetune", "Rerank"))
    plain._evaluator = replace(plain._evaluator, at_levels=False)  # chosen lists have no levels
    list(plain)
    list(free)
    tasks = list(free.summary())  # `event` has no lists of all users together
    assert free.summary() == {task: plain.summary()[task] for task in tasks}
    for ours, theirs in zip(free.results, plain.results, strict=True):
        for task in tasks:
            assert ours.tasks[task].metrics == theirs.tasks[task].metrics


def test_the_seconds_of_choosing_are_kept_beside_those_of_learning(log: EventLog) -> None:
    run = finished(log)
    timing = run.document()["timing"]
    chosen = [result.tasks["remain"].reranking for result in run.results]
    assert timing["rerank_s"] == [report.seconds for report in chosen if report]
    assert len(timing["rerank_s"]) == len(timing["update_s"]) == 3
    assert min(timing["rerank_s"]) > 0
    assert set(finished(log, "Finetune").document()["timing"]) == {"pretrain_s", "update_s"}


def test_the_table_shows_the_seconds_of_both(log: EventLog) -> None:
    timing = {"pretrain_s": 1.0, "update_s": [1.0, 2.0, 3.0]}
    document = finished(log).document()
    for also, expected in (
        ({}, ["1.00", "2.00", "3.00", "2.00"]),
        ({"rerank_s": [0.5, 0.5, 2.0]}, ["1.50", "2.50", "5.00", "3.00"]),
    ):
        table = period_table({**document, "timing": {**timing, **also}}, "remain")
        assert [row[-1] for row in table.rows if row] == ["1.00", *expected]


def test_the_same_run_gives_the_same_document(log: EventLog) -> None:
    one, two = ({**finished(log).document(), "timing": {}} for _ in range(2))
    assert one == two
    assert set(one["periods"][0]["tasks"]["remain"]["reranking"]) == {"label_gap", "is_within"}


def test_the_tolerance_is_a_setting_of_rerank_alone(log: EventLog) -> None:
    for method, counts in (("Rerank", True), ("Finetune", False), ("FADE", False)):
        runs = [fairstream.run(log, method, model="mf", rerank_tolerance=value, **FAST) for value in (0.1, 0.2)]
        one, two = (Record.from_document(run.document()).settings for run in runs)
        assert (one != two) == counts
        assert ("rerank_tolerance" in one) == counts


def test_more_than_two_groups_are_refused_before_anything_is_learned(stream: fairstream.SyntheticStream) -> None:
    users = stream.users.set_column(1, "side", [["abc"[row % 3] for row in range(stream.users.num_rows)]])
    log = read_events(stream.events, users=users, group="side", advantaged="a")
    with pytest.raises(ConfigurationError, match="got 3 groups; choose a group column with two values"):
        fairstream.run(log, "Rerank", model="mf", **FAST)


def test_users_without_a_group_are_no_third_one(stream: fairstream.SyntheticStream) -> None:
    sides = [["a", "b", None][row % 3] for row in range(stream.users.num_rows)]
    log = read_events(stream.events, users=stream.users.set_column(1, "side", [sides]), group="side", advantaged="a")
    assert max(abs(gap) for gap in label_gaps(finished(log, rerank_tolerance=0.01))) <= 0.01 + 1e-12


def test_a_tolerance_is_no_less_than_nothing() -> None:
    assert RunConfig(method="Rerank").own_options == {"rerank_tolerance": 0.001}
    with pytest.raises(ConfigurationError, match=r"rerank_tolerance must be >= 0, got -0.1"):
        RunConfig(method="Rerank", rerank_tolerance=-0.1)


def test_a_recommender_refuses_it() -> None:
    with pytest.raises(ConfigurationError, match=r"^Rerank is a method of experiments "):
        make_recommender("mf", method="rerank")
