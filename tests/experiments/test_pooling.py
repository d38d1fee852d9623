"""Several seeds made one document: means, and the spread between seeds."""

from __future__ import annotations

import json
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

import fairstream
from fairstream import EventLog, Record
from fairstream.evaluation.regret import LevelPanel
from fairstream.experiments import pooled

FAST = {
    "pretrain_epochs": 1,
    "update_epochs": 1,
    "model_settings": {"embedding_dim": 8},
    "n_periods": 3,
    "device": "cpu",
}
SEEDS = (0, 4, 2)
pytestmark = pytest.mark.few(1)


@pytest.fixture(scope="module", params=["strict", "paper"])
def records(log: EventLog, request: pytest.FixtureRequest) -> list[Record]:
    """The same run from three seeds."""
    options = {"min_group_size": 5, "n_resamples": 20, "batch_size": 64, "protocol": request.param}
    return fairstream.run_seeds(log, SEEDS, model="mf", method="FADE", n_workers=1, **options, **FAST)


def test_one_record_pooled_is_the_record(records: list[Record]) -> None:
    assert pooled(records[:1]) == records[0].about


def scores(document: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Every metric of every period and of the summary."""
    found = {}
    for period in (document["pretrained"], *document["periods"]):
        for task, judged in period["tasks"].items():
            found |= {(period["t"], task, name): part for name, part in judged.items() if "@" in name}
    for task, metrics in document["summary"].items():
        found |= {("mean", task, name): part for name, part in metrics.items()}
    return found


def test_regret_is_that_of_the_seeds_mean_at_each_level(records: list[Record]) -> None:
    """The mean of the seeds' regrets would be larger: each seed has another best level by chance."""
    if not records[0].tests[1, "next"].levels:
        pytest.skip("the paper's protocol has no levels")
    ours = scores(pooled(records))["mean", "next", "ndcg@20"]
    panels = [LevelPanel.of(record.tested("next"), record.metric("ndcg@20"), ("a", "b"), 5) for record in records]
    values = np.mean([panel.values for panel in panels if panel is not None], axis=0)
    means = [values[np.array(panels[0].codes) == code].sum(axis=0) for code in range(2)]  # type: ignore[union-attr]
    levels = ["as served", *map(str, records[0].tests[1, "next"].levels)]
    assert list(ours["best_level"].values()) == [levels[int(np.argmax(mean))] for mean in means]
    assert set(ours["regret"]) == set(ours["by_group"])
    assert pooled(records)["periods"][0]["levels"] == [(None, 1.0)]


def test_pooled_numbers_are_the_means_of_the_runs(records: list[Record]) -> None:
    ours, each = scores(pooled(records)), [scores(record.document) for record in records]
    assert set(ours) == set(each[0])
    for at, score in ours.items():
        parts = [found[at] for found in each]
        for field in ("mean", "performance_disparity", "abs_performance_disparity"):
            assert score[field] == pytest.approx(mean(part[field] for part in parts), abs=1e-12)
        for group, value in score["by_group"].items():
            assert value == pytest.approx(mean(part["by_group"][group] for part in parts), abs=1e-12)
        for group, gap in score["gaps"].items():
            assert gap["value"] == pytest.approx(mean(part["gaps"][group]["value"] for part in parts), abs=1e-12)
        assert score["disparity"]["value"] == score["performance_disparity"]
        assert score.get("mean", score["mean"]) == score["mean"]


def test_the_spread_between_seeds_is_the_sample_standard_deviation(records: list[Record]) -> None:
    ours, each = scores(pooled(records)), [scores(record.document) for record in records]
    for at, score in ours.items():
        assert set(score["seed_sd"]) == {"mean", "performance_disparity", "abs_performance_disparity"}
        for field, sd in score["seed_sd"].items():
            assert sd == pytest.approx(stdev(found[at][field] for found in each), rel=1e-9, abs=1e-15)
    assert any(score["seed_sd"]["performance_disparity"] > 0 for score in ours.values())


def test_a_pooled_document_says_what_it_is_made_of(records: list[Record]) -> None:
    document = pooled(records)
    json.dumps(document, allow_nan=False)
    assert document["config"] == {**records[0].config, "seed": list(SEEDS)}
    assert document["data"] == records[0].document["data"]
    for at, score in scores(document).items():
        assert set(score) == set(scores(records[0].document)[at]) | {"seed_sd"}
        assert score["interval"][0] <= score["interval"][1]
        assert 0 < score["disparity"]["p_value"] <= 1
    for t, period in enumerate(document["periods"]):
        for task, judged in period["tasks"].items():
            own = [record.document["periods"][t]["tasks"][task] for record in records]
            # the same users are tested whatever the seed
            for name in ("n_tested_users", "n_cold_users", "excluded_groups"):
                assert all(part[name] == judged[name] for part in own)
    for task, parts in document["slices"].items():
        warm = [record.document["slices"][task]["warm_users"]["ndcg@20"]["mean"] for record in records]
        assert parts["warm_users"]["ndcg@20"]["mean"] == pytest.approx(mean(warm), abs=1e-12)
    seconds = [record.document["timing"]["pretrain_s"] for record in records]
    assert document["timing"]["pretrain_s"] == pytest.approx(mean(seconds))


def test_the_same_values_from_every_seed_are_pooled_into_themselves(records: list[Record]) -> None:
    config = records[0].config
    same = [Record.from_document({**records[0].document, "config": {**config, "seed": seed}}) for seed in (1, 2)]
    ours, theirs = scores(pooled(same)), scores(records[0].document)
    for at, score in ours.items():
        assert score["mean"] == pytest.approx(theirs[at]["mean"], abs=1e-12)
        assert score["by_group"] == pytest.approx(theirs[at]["by_group"], abs=1e-12)
        assert set(score["seed_sd"].values()) == {0.0}


def test_what_chance_gives_is_that_of_the_runs_like_the_size_beside_it(records: list[Record]) -> None:
    for task, metrics in pooled(records)["summary"].items():
        for metric, score in metrics.items():
            own = [record.document["summary"][task][metric]["null_mean"] for record in records]
            assert score["null_mean"] == pytest.approx(mean(own), abs=1e-12)
