"""What is stored of a run: the layout, the averages, and files that are whole or not there."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream
from fairstream import ConfigurationError, EventLog, GroupScores, Judgement, PeriodResult, Run, Step, Update
from fairstream.experiment import summarise, write_json

TASKS = ("remain", "next")
FAST = {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8, "batch_size": 64, "device": "cpu"}


@pytest.fixture(scope="module")
def small() -> EventLog:
    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    return fairstream.read_events(stream.events, users=stream.users, group="community", advantaged="majority")


@pytest.fixture(scope="module", params=["strict", "paper"])
def finished(small: EventLog, request: pytest.FixtureRequest) -> Run:
    run = fairstream.run(small, n_periods=4, protocol=request.param, **FAST)
    list(run)
    return run


def stored(document: Any) -> Any:
    """The document as it comes back from a file; fails on NaN and infinity, which JSON has not."""
    return json.loads(json.dumps(document, allow_nan=False))


# ── the layout ───────────────────────────────────────────────────────────────────────────


def test_the_document_has_the_agreed_layout(finished: Run) -> None:
    document = stored(finished.document())
    assert {"config", "data", "versions", "pretrained", "periods", "summary", "timing"} == set(document)
    assert [period["t"] for period in document["periods"]] == [1, 2, 3]
    assert document["pretrained"]["t"] == 0
    for period in (document["pretrained"], *document["periods"]):
        assert set(period["tasks"]) == set(TASKS)
        for task in period["tasks"].values():
            assert {"ndcg@20", "f1@20"} <= set(task)
            for metric in (name for name in task if "@" in name):
                assert set(task[metric]) == {"overall", "by_group", "performance_disparity"}
                by_group = task[metric]["by_group"]
                assert set(by_group) == {"majority", "minority"}
                assert task[metric]["performance_disparity"] == by_group["majority"] - by_group["minority"]
    assert set(document["timing"]) == {"pretrain_s", "update_s"}
    assert len(document["timing"]["update_s"]) == 3
    assert all(seconds > 0 for seconds in (document["timing"]["pretrain_s"], *document["timing"]["update_s"]))


def test_the_document_says_what_made_it(finished: Run) -> None:
    document = stored(finished.document())
    assert document["config"] == stored(finished.config.model_dump())
    assert document["config"]["pretrain_ratio"] == 0.6  # the value used, not "by default"
    assert {"fairstream", "python", "torch", "numpy", "device"} <= set(document["versions"])
    assert document["versions"]["fairstream"] == fairstream.__version__
    assert document["data"]["sha256"] == finished.log.fingerprint()
    assert (document["data"]["n_events"], document["data"]["n_users"]) == (2000, finished.log.n_users)
    assert (document["data"]["advantaged"], document["data"]["disadvantaged"]) == ("majority", "minority")
    assert document["data"]["period_ends"] == list(finished.periods.ends)


def test_the_same_config_runs_again_from_its_document(finished: Run) -> None:
    again = Run(finished.log, fairstream.RunConfig(**stored(finished.document())["config"]))
    list(again)
    for part in ("config", "data", "versions", "pretrained", "periods", "summary"):
        assert stored(again.document())[part] == stored(finished.document())[part]


def test_the_hash_is_of_the_events_and_the_groups(small: EventLog) -> None:
    assert small.groups is not None
    swapped = replace(small, groups=small.groups.swapped())
    reordered = replace(small, users=small.users[::-1], items=small.items[::-1])
    assert len({small.fingerprint(), swapped.fingerprint(), reordered.fingerprint()}) == 3
    assert replace(small).fingerprint() == small.fingerprint()


def test_a_run_can_be_stored_before_it_has_begun_and_half_way(small: EventLog) -> None:
    run = fairstream.run(small, n_periods=4, **FAST)
    document = stored(run.document())
    assert (document["pretrained"], document["periods"], document["summary"]) == (None, [], {})
    assert document["timing"] == {"pretrain_s": None, "update_s": []}
    next(run)
    document = stored(run.document())
    assert [period["t"] for period in document["periods"]] == [1]
    assert document["summary"]["next"]["ndcg@20"]["mean"] == run.results[0].tasks["next"]["ndcg@20"].overall


# ── the averages ─────────────────────────────────────────────────────────────────────────


def test_the_summary_follows_from_the_periods(finished: Run) -> None:
    document = stored(finished.document())
    for task in TASKS:
        for metric, summary in document["summary"][task].items():
            scores = [period["tasks"][task][metric] for period in document["periods"]]
            assert summary["mean"] == pytest.approx(sum(score["overall"] for score in scores) / 3, rel=1e-12)
            gaps = [score["performance_disparity"] for score in scores]
            assert summary["performance_disparity"] == pytest.approx(sum(gaps) / 3, rel=1e-12)
            assert summary["abs_performance_disparity"] == pytest.approx(sum(map(abs, gaps)) / 3, rel=1e-12)
            for group, mean in summary["by_group"].items():
                assert mean == pytest.approx(sum(score["by_group"][group] for score in scores) / 3, rel=1e-12)


values = st.none() | st.floats(0, 1)


@st.composite
def scores(draw: st.DrawFn) -> GroupScores:
    advantaged, disadvantaged = draw(values), draw(values)
    gap = None if advantaged is None or disadvantaged is None else advantaged - disadvantaged
    return GroupScores(draw(values), {"a": advantaged, "b": disadvantaged}, gap)


@given(st.lists(scores(), min_size=1, max_size=6))
def test_averages_are_over_the_periods_in_which_there_was_someone_to_test(found: list[GroupScores]) -> None:
    update = Update(1, Step.KEEP, 0.1, None)
    periods = [
        PeriodResult(t, update, {task: Judgement({"ndcg@20": score}, 1, 0) for task in TASKS})
        for t, score in enumerate(found, start=1)
    ]
    summary = summarise(periods)
    assert set(summary) == set(TASKS)
    for task in TASKS:
        row = summary[task]["ndcg@20"]
        assert _same(row["mean"], [score.overall for score in found])
        assert _same(row["performance_disparity"], [score.performance_disparity for score in found])
        assert _same(row["abs_performance_disparity"], [score.abs_performance_disparity for score in found])
        assert all(_same(row["by_group"][name], [score.by_group[name] for score in found]) for name in "ab")
        if row["performance_disparity"] is not None:
            assert row["abs_performance_disparity"] >= abs(row["performance_disparity"]) - 1e-12
    stored([period.to_dict() for period in periods])


def _same(mean: float | None, found: list[float | None]) -> bool:
    there = [value for value in found if value is not None]
    return (
        mean is None
        if not there
        else mean is not None and math.isclose(mean, math.fsum(there) / len(there), abs_tol=1e-12)
    )


def test_nobody_to_test_is_null_and_not_nan() -> None:
    """Nobody comes back: all users of the later periods are new."""
    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    first, later = stream.events.slice(0, 1200), stream.events.slice(1200)
    strangers = [user + 1000 for user in later["user_id"].to_pylist()]
    events = pa.concat_tables([first, later.set_column(0, "user_id", [strangers])])
    community = stream.users["community"].to_pylist() * 2
    users = pa.table({"user_id": [*range(100), *range(1000, 1100)], "community": community})
    run = fairstream.run(fairstream.read_events(events, users=users), n_periods=2, **FAST)
    list(run)
    document = stored(run.document())
    task = document["pretrained"]["tasks"]["remain"]
    assert task["ndcg@20"] == {
        "overall": None,
        "by_group": {"majority": None, "minority": None},
        "performance_disparity": None,
    }
    assert task["n_tested_users"] == 0
    assert task["n_cold_users"] > 0


# ── the file ─────────────────────────────────────────────────────────────────────────────


def test_what_is_written_is_the_document(finished: Run, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("something older")
    write_json(finished.document(), path)
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == stored(finished.document())
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    "place",
    [
        "nowhere/result.json",
        "folder",
        "file/result.json",
    ],
)
def test_a_file_that_cannot_be_written_is_said_and_nothing_is_left(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="could not be written to") as caught:
        write_json({"a": 1}, tmp_path / place)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_document_that_is_no_json_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("older")
    with pytest.raises(TypeError):
        write_json({"a": object()}, path)
    assert path.read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1
