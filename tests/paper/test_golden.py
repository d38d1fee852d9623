"""The reproduction stays what it was: the ids of its runs, and a number of each method that only the paper has.

`python tests/paper/test_golden.py` writes the golden file again; do so only when numbers are meant to change.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fairstream import EventLog, RunConfig, read_events
from fairstream.experiments import run_id
from fairstream.paper.run import PaperRun
from fairstream.paper.settings import EXPERIMENTS, FULL, PARTS, QUICK, Scale, Setting

GOLDEN = Path(__file__).parents[1] / "golden" / "reproduction.json"
SCALES = {"full": FULL, "quick": QUICK}
PROTOCOLS = ("paper", "strict")
REPAIRED = ("paper+leak", "paper+ranking", "paper+ndcg", "paper+cold-users", "paper+optimizer", "paper+leak+ndcg")
SMALL: dict[str, Any] = {
    "model": "mf",
    "pretrain_epochs": 3,
    "update_epochs": 2,
    "model_settings": {"embedding_dim": 8},
    "batch_size": 256,
    "n_periods": 3,
    "n_resamples": 0,
    "tasks": ("remain", "next"),
    "k": 10,
    "seed": 0,
    "device": "cpu",
    "engine": "reference",
}
FEWER = {"pretrain_epochs": 1, "update_epochs": 1}
RUNS: dict[str, dict[str, Any]] = {
    "Finetune": {"method": "Finetune", "protocol": "paper"},
    "Finetune, strict": {"method": "Finetune", "protocol": "strict"},
    "Finetune, NCF": {"method": "Finetune", "protocol": "paper", "model": "ncf"},
    "Adver": {"method": "Adver", "protocol": "paper", **FEWER},
    "Adver, strict": {"method": "Adver", "protocol": "strict", "adversary_weight": 1.0, **FEWER},
    "Adver, NCF": {"method": "Adver", "protocol": "paper", "model": "ncf", **FEWER},
    "Rerank": {"method": "Rerank", "protocol": "paper"},
    "Rerank, strict": {"method": "Rerank", "protocol": "strict", "rerank_tolerance": 0.01},
    "FADE": {"method": "FADE", "protocol": "paper", "fairness_weight": 1.0},
    "FADE[NeuralNDCG]": {"method": "FADE", "protocol": "paper", "fairness_weight": 1.0, "surrogate": "neural-ndcg"},
    "FADE[ApproxNDCG]": {"method": "FADE", "protocol": "paper", "fairness_weight": 1.0, "surrogate": "approx-ndcg"},
    "FADE, restarts": {"method": "FADE", "protocol": "paper", "restart": "on-degradation"},
    **{name: {"method": "Finetune", "protocol": name} for name in REPAIRED},
}

MARKS = dict.fromkeys(
    ("Adver", "Adver, strict", "Adver, NCF", "FADE[NeuralNDCG]", "paper+ranking", "paper+ndcg", "paper+cold-users"),
    pytest.mark.slow,
)
"""Adversaries are slow; one of the two other surrogates and half of the repairs are enough for the fast tests."""


@cache
def small_log() -> EventLog:
    """About 8,000 events of 200 users and 150 items, not all of whom are there from the beginning; two groups."""
    rng = np.random.default_rng(0)
    n, moment = 10_000, np.arange(10_000)
    users, taste = rng.integers(0, np.minimum(200, 80 + moment // 60)), np.arange(200) % 5
    items = np.where(rng.random(n) < 0.5, taste[users] * 30 + rng.integers(0, 30, n), rng.integers(0, 150, n))
    events = pa.table({"user_id": users, "item_id": items % np.minimum(150, 70 + moment // 90), "timestamp": moment})
    about = pa.table({"user_id": np.arange(200), "gender": np.where(np.arange(200) % 3 == 0, "F", "M")})
    return read_events(events, users=about, group="gender", advantaged="M")


def ids_of(scale: Scale, protocol: str) -> dict[str, str]:
    """Data set, model and setting → the id of its run."""
    wanted: dict[str, tuple[Setting, Any]] = {
        f"{dataset} {model} {setting.label}": (setting, (dataset, model))
        for experiment in EXPERIMENTS.values()
        for dataset, model in PARTS
        if (dataset, model) in experiment.parts
        for setting in experiment.settings(scale, dataset, model)
    }
    configs = {
        name: scale.config(setting, *part, seed=0, protocol=protocol) for name, (setting, part) in wanted.items()
    }
    return {name: run_id(small_log(), config) for name, config in sorted(configs.items())}


def numbers_of(name: str) -> dict[str, Any]:
    """The mean and the disparity of each metric of a run, and what an adversary recovers."""
    work = PaperRun(small_log(), RunConfig(**{**SMALL, **RUNS[name]}))
    list(work)
    document = work.document()
    numbers = {
        f"{task} {metric} {what}": score[what]
        for task, scores in document["summary"].items()
        for metric, score in scores.items()
        for what in ("mean", "performance_disparity")
        if metric.startswith(("ndcg", "f1"))
    }
    if (recovery := document.get("group_recovery")) is not None:
        numbers["balanced accuracy"] = recovery["balanced_accuracy"]
    return {**numbers, "reranked lists are within": [p["tasks"]["next"].get("reranking") for p in document["periods"]]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("scale", SCALES)
def test_the_runs_of_the_plan_keep_their_ids(scale: str, protocol: str) -> None:
    assert ids_of(SCALES[scale], protocol) == json.loads(GOLDEN.read_text())["ids"][f"{scale} {protocol}"]


def test_runs_under_repaired_protocols_keep_their_ids() -> None:
    ids = {name: run_id(small_log(), RunConfig(method="FADE", protocol=name)) for name in REPAIRED}
    assert ids == json.loads(GOLDEN.read_text())["ids"]["repaired"]


@pytest.mark.few(5)
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in RUNS])
def test_each_method_of_the_paper_gives_what_it_gave(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())["numbers"][name]
    numbers = numbers_of(name)
    reranked, as_before = numbers.pop("reranked lists are within"), golden.pop("reranked lists are within")
    assert numbers == pytest.approx(golden, abs=1e-4)
    for report, before in zip(reranked, as_before, strict=True):
        assert report == (before and pytest.approx(before, abs=1e-4))


def _write() -> None:
    ids = {f"{name} {protocol}": ids_of(scale, protocol) for name, scale in SCALES.items() for protocol in PROTOCOLS}
    ids["repaired"] = {name: run_id(small_log(), RunConfig(method="FADE", protocol=name)) for name in REPAIRED}
    golden = {
        "made_by": "python tests/paper/test_golden.py",
        "ids": ids,
        "numbers": {name: numbers_of(name) for name in RUNS},
    }
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    _write()
