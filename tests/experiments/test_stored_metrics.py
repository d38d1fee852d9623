"""Metrics that the hits do not determine: stored, resumed, pooled, compared and exported like the built-in ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import duckdb
import numpy as np
import pytest
from typer.testing import CliRunner

import fairstream
from fairstream import ConfigurationError, EventLog, Record, compare, run_seeds
from fairstream.cli import app
from fairstream.evaluation import METRICS, Lists, Truth
from fairstream.evaluation.metrics import mrr, recall
from fairstream.experiments import Source, Store, pooled, run_id
from stores import FAST, stored, write_stream

pytestmark = pytest.mark.slow  # four runs are stored

NAMES = ["Coverage@5", "novelty@5", "recall@3"]
"""One number for all users, one value a user, and a built-in one with a cut-off of its own."""
OPTIONS: dict[str, Any] = {**FAST, "n_resamples": 20}
PLUGIN = """
import numpy as np, fairstream

def coverage(lists, truth):
    return len(np.unique(lists.items[lists.items >= 0])) / truth.n_items

def novelty(lists, truth):
    return -np.log2((truth.popularity[lists.items] + 1) / (truth.popularity.sum() + truth.n_items)).mean(axis=1)

fairstream.register_metric("Coverage", coverage)
fairstream.register_metric("novelty", novelty)
"""


def coverage(lists: Lists, truth: Truth) -> float:
    return len(np.unique(lists.items[lists.items >= 0])) / truth.n_items


def novelty(lists: Lists, truth: Truth) -> Any:
    popularity = (truth.popularity + 1) / (truth.popularity.sum() + truth.n_items)
    return np.where(lists.items >= 0, -np.log2(popularity[lists.items]), 0.0).mean(axis=1)


def unregister() -> None:
    for name in ("coverage", "novelty"):  # a registry has no public way to remove a name
        METRICS._parts.pop(name, None)
        METRICS._names.pop(name, None)


@contextmanager
def registered() -> Iterator[None]:
    fairstream.register_metric("Coverage", coverage)
    fairstream.register_metric("novelty", novelty)
    try:
        yield
    finally:
        unregister()


def finished(log: EventLog, method: str, **options: Any) -> Any:
    run = fairstream.run(log, method, **{"model": "mf", **OPTIONS, "metrics": NAMES, **options})
    list(run)
    return run


def untimed(document: Any) -> Any:
    return json.loads(json.dumps({**document, "timing": None}, allow_nan=False))


@pytest.fixture(scope="module")
def store(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two methods from two seeds, the periods of one of them computed apart; their metrics are not registered now."""
    store = Store(tmp_path_factory.mktemp("store"))
    with registered():
        for method in ("FADE", "Retrain"):
            run_seeds(
                source.read(),
                [0, 1],
                model="mf",
                method=method,
                metrics=NAMES,
                store=store.folder,
                n_workers=1,
                **OPTIONS,
            )
    return store


def records_of(store: Store, method: str) -> list[Record]:
    return sorted((r for r in store.records() if r.config["method"] == method), key=lambda record: record.seed)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["FADE", "Retrain"])
def test_a_stored_run_is_the_document_of_the_run(store: Store, source: Source, method: str) -> None:
    """Users' values, numbers for all users, summary and slices; also where the periods are joined from parts."""
    record = records_of(store, method)[1]
    with registered():
        run = finished(source.read(), method, seed=1)
    assert record.metrics == NAMES
    assert untimed(record.document) == untimed(run.document())
    assert store.path(run_id(run.log, run.config)).read_bytes() == stored(run).content()
    for result in run.results:
        for task, evaluation in result.tasks.items():
            tested = record.tests[result.t, task]
            assert tested.values["novelty@5"].tolist() == evaluation.tested.values["novelty@5"].tolist()
            assert tested.totals == evaluation.tested.totals
            assert set(tested.totals) == {"Coverage@5"}


def test_a_store_with_the_metrics_is_resumed(store: Store, source: Source) -> None:
    before = {name: store.path(name).stat().st_mtime_ns for name in store.ids()}
    with registered():
        records = run_seeds(
            source.read(), [0, 1], model="mf", method="FADE", metrics=NAMES, store=store.folder, n_workers=1, **OPTIONS
        )
    assert {name: store.path(name).stat().st_mtime_ns for name in store.ids()} == before
    assert [record.document for record in records] == [record.document for record in records_of(store, "FADE")]


def test_common_tools_read_the_values(store: Store) -> None:
    record = records_of(store, "FADE")[0]
    (path,) = [store.path(name) for name in store.ids() if store.read(name).document == record.document]
    query = f"""SELECT avg("novelty@5") FROM '{path}' WHERE t = 1 AND task = 'next'"""
    ((found,),) = duckdb.sql(query).fetchall()
    assert found == pytest.approx(record.about["periods"][0]["tasks"]["next"]["novelty@5"]["mean"])


def test_seeds_are_pooled_into_their_means(store: Store) -> None:
    records = records_of(store, "FADE")
    document = pooled(records)
    json.dumps(document, allow_nan=False)
    pairs = [(document["summary"][task], [r.about["summary"][task] for r in records]) for task in document["summary"]]
    pairs += [
        (result["tasks"][task], [r.results[result["t"]]["tasks"][task] for r in records])
        for result in (document["pretrained"], *document["periods"])
        for task in result["tasks"]
    ]
    for together, each in pairs:
        assert [name for name in together if "@" in name] == NAMES
        for name in NAMES:
            ours, theirs = together[name], [scores[name] for scores in each]
            for field in ("mean", "performance_disparity", "abs_performance_disparity"):
                assert ours[field] == pytest.approx(mean(score[field] for score in theirs), abs=1e-12)
                assert ours["seed_sd"][field] == pytest.approx(stdev(score[field] for score in theirs), abs=1e-12)
            for group, value in ours["by_group"].items():
                assert value == pytest.approx(mean(score["by_group"][group] for score in theirs), abs=1e-12)
            assert (ours["interval"] is None) == (name == "Coverage@5")


@pytest.mark.parametrize("metric", [*NAMES, "ndcg@5"])
def test_runs_are_compared_by_any_metric_that_they_have(store: Store, metric: str) -> None:
    """And by the protocol's, which the hits give whatever metrics were asked for."""
    comparison = compare(store, metric=metric, task="next", n_resamples=20)
    json.dumps(asdict(comparison), allow_nan=False)
    assert {contender.label for contender in comparison.contenders} == {"FADE", "Retrain"}
    by_label = {contender.label: contender for contender in comparison.contenders}
    if metric in NAMES:
        for label, contender in by_label.items():
            scores = [record.about["summary"]["next"][metric] for record in records_of(store, label)]
            assert contender.performance.value == pytest.approx(mean(score["mean"] for score in scores))
            sizes = [score["abs_performance_disparity"] for score in scores]
            assert contender.disparity.value == pytest.approx(mean(sizes))
            for group, value in contender.by_group.items():
                assert value == pytest.approx(mean(score["by_group"][group] for score in scores))
    (difference,) = comparison.against("FADE")
    values = [by_label[label].performance.value for label in ("Retrain", "FADE")]
    assert difference.performance.value == pytest.approx(values[0] - values[1])
    sizes = [by_label[label].disparity.value for label in ("Retrain", "FADE")]
    assert difference.disparity.value == pytest.approx(sizes[0] - sizes[1])
    is_one_number = metric == "Coverage@5"
    assert (difference.performance.interval is None) == (difference.disparity.interval is None) == is_one_number
    assert any("no intervals" in verdict for verdict in comparison.verdicts()) == is_one_number


def test_a_number_for_all_users_is_not_compared_on_a_part_of_them(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="Coverage@5 is one number for all users, not for cold users"):
        compare(store, metric="Coverage@5", part="cold")


@pytest.mark.slow
def test_a_metric_that_only_some_runs_have_is_not_offered(store: Store, source: Source) -> None:
    plain = finished(source.read(), "FADE-Abs", metrics=())
    with pytest.raises(ConfigurationError, match=r"metric must be one of ndcg@5, .*, got 'novelty@5'") as caught:
        compare([store, plain], metric="novelty@5")
    assert "Coverage" not in str(caught.value)
    assert len(compare([store, plain], n_resamples=20).contenders) == 3


@pytest.mark.slow
def test_one_run_with_other_metrics_is_the_same_run_and_the_one_with_the_metric_is_used(
    store: Store, source: Source
) -> None:
    plain = finished(source.read(), "FADE", metrics=())
    for runs in ([plain, store], [store, plain]):
        ours, expected = (compare(each, metric="novelty@5", n_resamples=20).contenders for each in (runs, store))
        assert sorted(ours, key=str) == sorted(expected, key=str)


@pytest.mark.slow
def test_functions_under_any_name_are_pooled_and_compared_by_their_own_values(source: Source) -> None:
    """Also a built-in function under another's name: the name alone would compute something else."""
    metrics = {"mine": mrr, "ndcg": recall, "Coverage": coverage}
    log = source.read()
    runs = {
        method: run_seeds(log, [0, 1], model="mf", method=method, metrics=metrics, n_workers=1, **OPTIONS)
        for method in ("FADE", "Finetune")
    }
    document = pooled(runs["FADE"])
    for name, function in (("mine@5", "mrr@5"), ("ndcg@5", "recall@5")):
        expected = [finished(log, "FADE", metrics=(), seed=seed).summary()["next"][function]["mean"] for seed in (0, 1)]
        assert document["summary"]["next"][name]["mean"] == pytest.approx(mean(expected))
        comparison = compare([*runs["FADE"], *runs["Finetune"]], metric=name, task="next", n_resamples=20)
        assert comparison.contenders[0].performance.value == pytest.approx(mean(expected))


def test_a_run_stored_without_the_values_is_shown_and_what_cannot_be_done_with_it_is_said(store: Store) -> None:
    def stripped(record: Record) -> Record:
        tests = {at: replace(tested, values={}, totals={}) for at, tested in record.tests.items()}
        return Record(record.about, lambda: tests)

    records = [stripped(record) for record in store.records()]
    assert list(pooled(records[:1])["summary"]["next"]) == NAMES
    assert len(compare(records, n_resamples=20).contenders) == 2
    for name in ("novelty@5", "Coverage@5"):
        with pytest.raises(ConfigurationError, match=f"no users' values of the metric {name} .*; compute them again"):
            compare(records, metric=name)


def test_nobody_tested_in_a_period_leaves_the_others(store: Store) -> None:
    record = records_of(store, "FADE")[0]
    document = record.document
    users = document["periods"][1]["tasks"]["next"]["tested"]
    for name in ("users", "groups", "cold", "n_positives", "hit_ranks"):
        users[name] = []
    del users["values"], users["totals"]
    again = Record.from_document(document)
    assert untimed(again.document) == untimed(document)
    joined = pooled([again, again])["summary"]["next"]
    first = record.about["periods"][0]["tasks"]["next"]
    assert {name: joined[name]["mean"] for name in NAMES} == pytest.approx({n: first[n]["mean"] for n in NAMES})


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_stream(tmp_path / "stream")
    (tmp_path / "mine.py").write_text(PLUGIN)
    reading = ["stream", "--group=community", "--advantaged=majority"]
    plain = {name: value for name, value in FAST.items() if name != "model_settings"}
    options = ["--model=mf", *(f"--{name.replace('_', '-')}={value}" for name, value in plain.items())]
    options += [f"--set={name}={value}" for name, value in FAST["model_settings"].items()]
    asked = ["--plugin=mine.py", *(f"--metric={name}" for name in NAMES)]

    def command(*arguments: str) -> str:
        outcome = CliRunner().invoke(app, list(arguments))
        assert outcome.exit_code == 0, outcome.output
        return outcome.stdout

    try:
        for method in ("FADE", "Finetune"):
            shown = command(
                "run", *reading, *options, *asked, f"--method={method}", "--seeds=2", "--workers=1", "--store=kept"
            )
            assert all(name in shown for name in NAMES)
    finally:
        unregister()
    assert "no intervals" in command("compare", "kept", "--metric=Coverage@5")
    compared = json.loads(command("compare", "kept", "--metric=novelty@5", "--json=-"))
    assert compared["metric"] == "novelty@5"
    assert all(c["performance"]["interval"][0] <= c["performance"]["value"] for c in compared["contenders"])


def test_one_metric_may_be_given_without_a_list(source: Source) -> None:
    assert fairstream.RunConfig(model="mf", metrics="recall@3").metrics == ("recall@3",)
    run = fairstream.run(source.read(), "FADE", metrics="recall@3", **{"model": "mf", **OPTIONS})
    assert run.config.metrics == ("recall@3",)
