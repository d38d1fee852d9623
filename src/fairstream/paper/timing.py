"""The time table (RQ4): seconds per period, on one machine, with nothing beside it.

As in the paper, a cell is the mean over the periods of the seconds that an update takes; for
Rerank, those of choosing the lists too. What an update costs does not depend on how well the
model was trained before, so pre-training is one epoch. Retraining costs in proportion to the data
so far and the epochs; where fewer than the paper's 100 are run, its seconds are scaled up to them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import torch

from fairstream.experiments.config import RunConfig
from fairstream.experiments.jobs import Source
from fairstream.experiments.pool import OnStage
from fairstream.experiments.run import Run
from fairstream.experiments.store import Store
from fairstream.methods import METHODS
from fairstream.paper.findings import Seconds
from fairstream.paper.published import TIMES
from fairstream.paper.settings import DATASETS, JUDGED, MODELS, ModelName, Scale, Setting

_PAPER_EPOCHS = 100
TIMED = (
    *(Setting.of(method) for method in ("Finetune", "Rerank")),
    Setting.of("FADE", fairness_weight=1.0),
    Setting.of("FADE", fairness_weight=1.0, surrogate="neural-ndcg"),
    Setting.of("FADE", fairness_weight=1.0, surrogate="approx-ndcg"),
    Setting.of("Adver", adversary_weight=10.0),
    Setting.of("Retrain"),
    Setting.of("Retrain-Fair", fairness_weight=1.0),
)


def time_methods(
    store: Store,
    sources: Mapping[str, Source],
    parts: Sequence[tuple[str, ModelName]],
    scale: Scale,
    protocol: str,
    device: Literal["auto", "cpu", "cuda"],
    on_stage: OnStage,
) -> None:
    """Measure what has not been measured yet, one after the other."""
    cells = [(*part, setting) for part in parts for setting in TIMED]
    tell = on_stage("running times, one at a time", [])
    for n, (dataset, model, setting) in enumerate(cells):
        config = scale.config(setting, dataset, model, seed=0, protocol=protocol).with_options(device=device)
        device_name = _device_name(config)
        name = _name(dataset, model, setting.label, protocol, device_name)
        if name not in store.times():
            log = sources[dataset].read()
            retrains = METHODS[setting.method].strategy == "retrain"
            seconds = _retraining(log, config) if retrains else _updating(log, config)
            about = {"dataset": dataset, "model": model, "method": setting.method, "options": dict(setting.options)}
            store.write_times(name, {**about, "device": device_name, **seconds})
        tell(0.0, n + 1)


def seconds_table(store: Store) -> list[Seconds]:
    """Every cell of the table, measured or not."""
    measured = measured_seconds(store)
    cells = [
        (dataset, model, _series(setting.method, dict(setting.options)))
        for dataset in DATASETS
        for model in MODELS
        for setting in TIMED
    ]
    return [
        Seconds(*cell, TIMES[cell[:2]].get(cell[2]), fmean(measured[cell]) if cell in measured else None)
        for cell in cells
    ]


def measured_seconds(store: Store) -> dict[tuple[str, str, str], list[float]]:
    """(data set, model, method) → the seconds of each timed period, re-ranking included, on one device.

    Where there are times of several devices, those of the one that most were measured on.
    """
    found = {}
    all_times = list(store.times().values())
    devices = Counter(times["device"] for times in all_times)
    for times in all_times:
        if times["device"] != max(devices, key=lambda device: devices[device]):
            continue
        updates = [seconds * _PAPER_EPOCHS / times.get("epochs", _PAPER_EPOCHS) for seconds in times["update_s"]]
        more = times.get("rerank_s") or [0.0] * len(updates)
        cell = (times["dataset"], times["model"], _series(times["method"], times["options"]))
        found[cell] = [a + b for a, b in zip(updates, more, strict=True)]
    return found


def _series(method: str, options: Mapping[str, Any]) -> str:
    """The name of a row of the table."""
    names = {"neural-ndcg": "FADE[NeuralNDCG]", "approx-ndcg": "FADE[ApproxNDCG]"}
    return names.get(options.get("surrogate", ""), method)


def _updating(log: Any, config: RunConfig) -> dict[str, Any]:
    last = min(JUDGED.stop, config.n_periods or JUDGED.stop)
    run = Run(log, config.with_options(pretrain_epochs=1, n_periods=last))
    results = list(run)
    chosen = [report.seconds for result in results if (report := result.tasks["remain"].reranking)]
    return {
        "periods": [result.t for result in results],
        "update_s": [result.update.seconds for result in results],
        **({"rerank_s": chosen} if chosen else {}),
    }


def _retraining(log: Any, config: RunConfig) -> dict[str, Any]:
    last = (config.n_periods or JUDGED.stop) - 1
    periods = [t for t in JUDGED if t <= last]
    Run(log, config.with_options(pretrain_epochs=1)).retrain_at(periods[0])  # what is compiled first is not timed
    seconds = [Run(log, config).retrain_at(t).update.seconds for t in periods]
    return {"periods": periods, "update_s": seconds, "epochs": config.pretrain_epochs}


def _device_name(config: RunConfig) -> str:
    device = config.torch_device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _name(*about: str) -> str:
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:20]
