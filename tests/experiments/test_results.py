"""What is stored of a run: the layout, the averages, and files that are whole or not there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream
from fairstream import ConfigurationError, EventLog, Run
from fairstream.experiments import make_run
from fairstream.experiments.record import mean_of
from fairstream.files import to_json, write_file

TASKS = {"strict": ("event", "next", "remain"), "paper": ("remain", "next")}
FAST = {
    "pretrain_epochs": 1,
    "update_epochs": 1,
    "model_settings": {"embedding_dim": 8},
    "batch_size": 64,
    "min_group_size": 1,
    "n_resamples": 20,
    "device": "cpu",
}
METRICS = ["ndcg@20", "recall@20", "precision@20", "f1@20", "hit@20", "mrr@20"]
SLICES = {"warm_users", "cold_users", "no_group", "cold_items", "new_items"}
HISTORY_SLICES = {"history_0", "history_1", "history_2_4", "history_5_19", "history_20_plus"}
ESTIMATE = {"value", "interval", "p_value", "null_mean"}


@pytest.fixture(scope="module")
def small() -> EventLog:
    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    return fairstream.read_events(stream.events, users=stream.users, group="community", advantaged="majority")


@pytest.fixture(scope="module", params=["strict", "paper"])
def finished(small: EventLog, request: pytest.FixtureRequest) -> Run:
    run = fairstream.run(small, model="mf", n_periods=4, protocol=request.param, **FAST)
    list(run)
    return run


def stored(document: Any) -> Any:
    """The document as it comes back from a file; fails on NaN and infinity, which JSON has not."""
    return json.loads(json.dumps(document, allow_nan=False))


def judged(document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every judgement of a run by its task."""
    for period in (document["pretrained"], *document["periods"]):
        yield from period["tasks"].items()


# ── the layout ───────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
def test_the_document_has_the_agreed_layout(finished: Run) -> None:
    document = stored(finished.document())
    parts = {"config", "data", "versions", "notes", "pretrained", "periods", "summary", "slices", "timing"}
    assert set(document) == parts
    assert [period["t"] for period in document["periods"]] == [1, 2, 3]
    assert document["pretrained"]["t"] == 0
    for period in (document["pretrained"], *document["periods"]):
        assert tuple(period["tasks"]) == TASKS[finished.config.protocol]
        assert period["advantaged"] == ["majority"]
    expected = METRICS if finished.config.protocol == "strict" else [*METRICS, "true_ndcg@20"]
    for task, judgement in judged(document):
        assert [name for name in judgement if "@" in name] == expected
        assert {"n_tested_users", "n_cold_users", "excluded_groups", "slices", "tested"} <= set(judgement)
        of_events = {"n_lists"} if task == "event" else set()
        at_levels = {"levels", "level_values"} if finished.config.protocol == "strict" and task != "remain" else set()
        always = {"k", "users", "groups", "cold", "n_positives", "hit_ranks", "strata"}
        assert set(judgement["tested"]) == always | of_events | at_levels
        assert len(judgement["tested"]["users"]) == judgement["n_tested_users"]
    for task in TASKS[finished.config.protocol]:
        assert list(document["summary"][task]) == expected
        assert set(document["slices"][task]) == SLICES | (HISTORY_SLICES if task == "event" else set())
    assert set(document["timing"]) == {"pretrain_s", "update_s"}
    assert len(document["timing"]["update_s"]) == 3
    assert all(seconds > 0 for seconds in (document["timing"]["pretrain_s"], *document["timing"]["update_s"]))


def test_every_gap_comes_with_its_uncertainty(finished: Run) -> None:
    document = stored(finished.document())
    scores = [score for _, judgement in judged(document) for name, score in judgement.items() if "@" in name]
    scores += [score for task in TASKS[finished.config.protocol] for score in document["summary"][task].values()]
    for score in scores:
        by_group, disparity = score["by_group"], score["disparity"]
        assert list(by_group) == ["majority", "minority"]
        assert set(score["gaps"]) == {"majority", "minority"}
        assert score["performance_disparity"] == disparity["value"]
        assert disparity["value"] == pytest.approx(by_group["majority"] - by_group["minority"], abs=1e-12)
        assert score["gaps"]["minority"]["value"] == pytest.approx(-disparity["value"], abs=1e-12)
        assert score["interval"][0] <= score["interval"][1]
        for gap in (disparity, *score["gaps"].values()):
            assert set(gap) == ESTIMATE
            assert gap["interval"][0] <= gap["interval"][1]
            assert 0 < gap["p_value"] <= 1
            assert gap["null_mean"] >= 0


@pytest.mark.few(1)
def test_without_resamples_there_is_no_uncertainty_and_the_same_numbers(finished: Run) -> None:
    run = make_run(finished.log, finished.config.with_options(n_resamples=0))
    list(run)
    ours, theirs = stored(run.document()), stored(finished.document())
    for task in TASKS[finished.config.protocol]:
        for metric, score in ours["summary"][task].items():
            other = theirs["summary"][task][metric]
            assert (score["interval"], score["disparity"]["interval"], score["disparity"]["p_value"]) == (None,) * 3
            assert (score["mean"], score["by_group"]) == (other["mean"], other["by_group"])
            assert score["performance_disparity"] == other["performance_disparity"]


def test_the_document_says_what_made_it(finished: Run) -> None:
    document = stored(finished.document())
    assert document["config"] == stored(finished.config.model_dump())
    assert document["config"]["pretrain_ratio"] == 0.6  # the value used, not "by default"
    assert {"fairstream", "python", "torch", "numpy", "device"} <= set(document["versions"])
    assert document["versions"]["fairstream"] == fairstream.__version__
    data = document["data"]
    assert data["sha256"] == finished.log.fingerprint()
    assert (data["n_events"], data["n_users"]) == (2000, finished.log.n_users)
    assert (data["group"], data["groups"]) == ("community", ["majority", "minority"])
    assert (data["advantaged"], data["advantaged_by"]) == ("majority", "declared")
    assert data["period_ends"] == list(finished.periods.ends)


@pytest.mark.slow
def test_the_same_config_runs_again_from_its_document(finished: Run) -> None:
    again = make_run(finished.log, fairstream.RunConfig(**stored(finished.document())["config"]))
    list(again)
    for part in ("config", "data", "versions", "pretrained", "periods", "summary", "slices"):
        assert stored(again.document())[part] == stored(finished.document())[part]


@pytest.mark.parametrize("period", ["150", "7%", "1d"])
def test_periods_of_a_given_length_are_found_again_from_the_document(period: str) -> None:
    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    days = stream.events.set_column(2, "time", pa.array([86_400 * time for time in stream.events["time"].to_pylist()]))
    log = fairstream.read_events(days, users=stream.users)
    run = fairstream.run(log, model="mf", period=period, **FAST)
    again = Run(log, fairstream.RunConfig(**stored(run.document())["config"]))
    assert again.periods == run.periods
    assert again.config == run.config
    if period == "1d":  # the stream's own periods, by its clock
        assert run.periods.ends == tuple(int((log.times < 86_400 * day).sum()) for day in range(1, 12))


def test_the_hash_is_of_the_events_and_who_is_in_which_group(small: EventLog) -> None:
    assert small.groups is not None
    reordered = replace(small, users=small.users[::-1], items=small.items[::-1])
    regrouped = replace(small, groups=replace(small.groups, codes=1 - small.groups.codes))
    assert len({small.fingerprint(), regrouped.fingerprint(), reordered.fingerprint()}) == 3
    assert replace(small).fingerprint() == small.fingerprint()
    # the same data, looked at from the other side
    swapped = replace(small, groups=small.groups.with_advantaged("minority"))
    assert swapped.fingerprint() == small.fingerprint()


def test_a_run_can_be_stored_before_it_has_begun_and_half_way(small: EventLog) -> None:
    run = fairstream.run(small, model="mf", n_periods=4, **FAST)
    document = stored(run.document())
    assert (document["pretrained"], document["periods"], document["summary"]) == (None, [], {})
    assert document["timing"] == {"pretrain_s": None, "update_s": []}
    next(run)
    document = stored(run.document())
    assert [period["t"] for period in document["periods"]] == [1]
    assert document["summary"]["next"]["ndcg@20"]["mean"] == run.results[0].tasks["next"]["ndcg@20"].mean


# ── the averages ─────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
def test_the_summary_follows_from_the_periods(finished: Run) -> None:
    document = stored(finished.document())
    for task in TASKS[finished.config.protocol]:
        for metric, summary in document["summary"][task].items():
            scores = [period["tasks"][task][metric] for period in document["periods"]]
            assert summary["mean"] == pytest.approx(sum(score["mean"] for score in scores) / 3, rel=1e-12)
            gaps = [score["performance_disparity"] for score in scores]
            assert summary["performance_disparity"] == pytest.approx(sum(gaps) / 3, rel=1e-9, abs=1e-12)
            assert summary["abs_performance_disparity"] == pytest.approx(sum(map(abs, gaps)) / 3, rel=1e-9)
            for group, mean in summary["by_group"].items():
                assert mean == pytest.approx(sum(score["by_group"][group] for score in scores) / 3, rel=1e-12)


def test_the_slices_are_averaged_over_the_periods(finished: Run) -> None:
    document = stored(finished.document())
    for task in TASKS[finished.config.protocol]:
        for name, part in document["slices"][task].items():
            own = [period["tasks"][task]["slices"][name] for period in document["periods"]]
            assert part["n_users"] == pytest.approx(sum(other["n_users"] for other in own) / 3)
            there = [value for other in own if (value := other["ndcg@20"]["mean"]) is not None]
            expected = sum(there) / len(there) if there else None
            assert part["ndcg@20"]["mean"] == (None if expected is None else pytest.approx(expected))


values = st.none() | st.floats(-1, 1)
shapes = st.fixed_dictionaries(
    {"a": values, "b": st.fixed_dictionaries({"c": values}), "d": st.tuples(values).map(list)}
)


@given(st.lists(shapes, min_size=1, max_size=6))
def test_a_mean_is_over_what_is_there(found: list[dict[str, Any]]) -> None:
    mean = mean_of(found)
    assert _same(mean["a"], [part["a"] for part in found])
    assert _same(mean["b"]["c"], [part["b"]["c"] for part in found])
    assert _same(mean["d"][0], [part["d"][0] for part in found])


def _same(mean: float | None, found: list[float | None]) -> bool:
    there = [value for value in found if value is not None]
    if not there:
        return mean is None
    return mean is not None and math.isclose(mean, math.fsum(there) / len(there), abs_tol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_where_nobody_comes_back_the_fallback_is_judged_or_nobody(protocol: str) -> None:
    """All users of the later periods are new: `strict` tests them, the paper leaves them out."""
    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    first, later = stream.events.slice(0, 1200), stream.events.slice(1200)
    strangers = [user + 1000 for user in later["user_id"].to_pylist()]
    events = pa.concat_tables([first, later.set_column(0, "user_id", [strangers])])
    community = stream.users["community"].to_pylist() * 2
    users = pa.table({"user_id": [*range(100), *range(1000, 1100)], "community": community})
    log = fairstream.read_events(events, users=users)
    run = fairstream.run(log, model="mf", n_periods=2, protocol=protocol, **{**FAST, "batch_size": 50})
    list(run)
    document = stored(run.document())
    task = document["pretrained"]["tasks"]["remain"]
    score, warm = task["ndcg@20"], task["slices"]["warm_users"]
    assert task["n_cold_users"] == len(set(strangers))
    assert (warm["n_users"], warm["ndcg@20"]["mean"]) == (0, None)
    if protocol == "strict":
        assert task["n_tested_users"] == task["n_cold_users"] == task["slices"]["cold_users"]["n_users"]
        assert 0 < score["mean"] <= 1  # what is popular is not nothing
        assert None not in score["by_group"].values()
    else:
        assert task["n_tested_users"] == 0
        assert (score["mean"], score["interval"], score["disparity"], score["largest_gap"]) == (None,) * 4
        assert score["by_group"] == {"majority": None, "minority": None}
        assert (score["performance_disparity"], score["abs_performance_disparity"], score["gaps"]) == (None, None, {})


# ── the file ─────────────────────────────────────────────────────────────────────────────


def test_what_is_written_is_the_document(finished: Run, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("something older")
    write_file(path, to_json(finished.document()).encode())
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
        write_file(tmp_path / place, to_json({"a": 1}).encode())
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_document_that_is_no_json_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("older")
    with pytest.raises(TypeError):
        write_file(path, to_json({"a": object()}).encode())
    assert path.read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1
