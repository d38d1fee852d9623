"""The time table and its claims (RQ4): seconds per period, on one otherwise idle machine.

As in the paper, a cell is the mean over the periods of the seconds of an update; for Rerank, also
those of choosing the lists. The cost of an update does not depend on earlier training, so
pre-training is one epoch. The cost of retraining is proportional to the data so far and the epochs;
from fewer than the paper's 100 epochs, the seconds are scaled up to 100.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch

from fairstream import RunConfig
from fairstream.evaluation import Estimate
from fairstream.experiments import Device, Job, OnJobs, Source, Store
from fairstream.paper.findings import TIMES, Claim, Seconds, graded
from fairstream.paper.run import PaperRun, rerank_seconds
from fairstream.paper.settings import JUDGED, PARTS, RETRAINING, Part, Scale, Setting

_PAPER_EPOCHS = 100
_NOTE = "running_times"
TIMED = (
    *(Setting.of(method) for method in ("Finetune", "Rerank")),
    Setting.of("FADE", fairness_weight=1.0),
    Setting.of("FADE", fairness_weight=1.0, surrogate="neural-ndcg"),
    Setting.of("FADE", fairness_weight=1.0, surrogate="approx-ndcg"),
    Setting.of("Adver", adversary_weight=10.0),
    Setting.of("Retrain"),
    Setting.of("Retrain-Fair", fairness_weight=1.0),
)


OnStage = Callable[[str, Sequence[Job]], OnJobs]
"""Called with the name of a stage and its jobs; returns what to call as the work proceeds."""


def time_methods(
    store: Store,
    sources: Mapping[str, Source],
    parts: Sequence[Part],
    scale: Scale,
    protocol: str,
    device: Device,
    on_stage: OnStage,
) -> None:
    """Measure the missing times, one after the other."""
    cells = [(*part, setting) for part in parts for setting in TIMED]
    on_jobs = on_stage("running times, one at a time", [])
    for n, (dataset, model, setting) in enumerate(cells):
        config = scale.config(setting, dataset, model, seed=0, protocol=protocol).with_options(device=device)
        torch_device = config.torch_device()
        device_name = torch.cuda.get_device_name(torch_device) if torch_device.type == "cuda" else "cpu"
        key = json.dumps([dataset, model, setting.label, protocol, device_name])
        name = hashlib.sha256(key.encode()).hexdigest()[:20]
        if name not in _times(store):
            log = sources[dataset].read()
            seconds = _retraining(log, config) if setting.method in RETRAINING else _updating(log, config)
            about = {"dataset": dataset, "model": model, "method": setting.method, "options": dict(setting.options)}
            store.write_note(_NOTE, {**_times(store), name: {**about, "device": device_name, **seconds}})
        on_jobs(0.0, n + 1)


def seconds_table(store: Store) -> list[Seconds]:
    """Return all cells of the table, measured or not."""
    measured = measured_seconds(store)
    cells = [(*part, _series(setting.method, dict(setting.options))) for part in PARTS for setting in TIMED]
    return [
        Seconds(*cell, TIMES[cell[:2]].get(cell[2]), fmean(measured[cell]) if cell in measured else None)
        for cell in cells
    ]


def _times(store: Store) -> dict[str, Any]:
    return store.note(_NOTE) or {}


def measured_seconds(store: Store) -> dict[tuple[str, str, str], list[float]]:
    """(data set, model, method) → the seconds of each timed period, re-ranking included, on one device.

    Of several devices, the one with the most times counts.
    """
    seconds_of = {}
    all_times = list(_times(store).values())
    devices = Counter(times["device"] for times in all_times).most_common(1)
    for times in all_times:
        if times["device"] != devices[0][0]:
            continue
        updates = [seconds * _PAPER_EPOCHS / times.get("epochs", _PAPER_EPOCHS) for seconds in times["update_s"]]
        more = times.get("rerank_s") or [0.0] * len(updates)
        cell = (times["dataset"], times["model"], _series(times["method"], times["options"]))
        seconds_of[cell] = [a + b for a, b in zip(updates, more, strict=True)]
    return seconds_of


def _series(method: str, options: Mapping[str, Any]) -> str:
    """The name of a row of the table."""
    names = {"neural-ndcg": "FADE[NeuralNDCG]", "approx-ndcg": "FADE[ApproxNDCG]"}
    return names.get(options.get("surrogate", ""), method)


def _updating(log: Any, config: RunConfig) -> dict[str, Any]:
    last = min(JUDGED.stop, config.n_periods or JUDGED.stop)
    run = PaperRun(log, config.with_options(pretrain_epochs=1, n_periods=last))
    results = list(run)
    chosen = rerank_seconds(run)
    return {
        "periods": [result.t for result in results],
        "update_s": [result.update.seconds for result in results],
        **({"rerank_s": chosen} if chosen else {}),
    }


def _retraining(log: Any, config: RunConfig) -> dict[str, Any]:
    last = (config.n_periods or JUDGED.stop) - 1
    periods = [t for t in JUDGED if t <= last]
    PaperRun(log, config.with_options(pretrain_epochs=1)).retrain_at(periods[0])  # compile before timing
    seconds = [PaperRun(log, config).retrain_at(t).update.seconds for t in periods]
    return {"periods": periods, "update_s": seconds, "epochs": config.pretrain_epochs}


_N_RESAMPLES = 2000

RATIOS = (
    ("RQ4", "Finetune", "Retrain", 323.0),
    ("RQ4", "FADE", "Retrain-Fair", 270.0),
    ("RQ4", "FADE", "Adver", 10.23),
    ("RQ4", "FADE", "Rerank", 94.11),
    ("RQ4", "Finetune", "FADE", 1.27),
    ("RQ4", "Retrain", "Retrain-Fair", 1.06),
    ("RQ5", "FADE", "FADE[NeuralNDCG]", 4.0),
)
"""(question, the faster method, the slower one, how many times faster in the paper)."""
PRICES = {("Finetune", "FADE"), ("Retrain", "Retrain-Fair")}
"""Ratios that should be small: the cost of the fairness loss. They hold up to 1.5, in part up to 2."""


def time_claims(store: Store) -> list[Claim]:
    """Return the ratios of the mean seconds per period, over the data sets and models with times of both methods."""
    measured = measured_seconds(store)
    claims = []
    for question, fast, slow, paper in RATIOS:
        both = [part for part in PARTS if (*part, fast) in measured and (*part, slow) in measured]
        is_price = (fast, slow) in PRICES
        text = f"{fast}'s update is {paper:g} × faster than {slow}'s"
        if is_price:
            text = f"{slow}'s update takes only {paper:g} × as long as {fast}'s"
        if not both:
            claims.append(Claim(question, text, paper, None, None, "×", "not tested", "no times in this store"))
            continue
        times = {method: [measured[*part, method] for part in both] for method in (fast, slow)}
        ratio = fmean(map(fmean, times[slow])) / fmean(map(fmean, times[fast]))
        rng = np.random.default_rng(0)
        slow_mean, fast_mean = (
            np.mean([rng.choice(each, (_N_RESAMPLES, len(each))).mean(axis=1) for each in times[method]], axis=0)
            for method in (slow, fast)
        )
        interval = Estimate.of_draws(ratio, slow_mean / fast_mean).interval
        reason = f"mean seconds per period over {len(both)} of 4 data sets and models; interval over the timed periods"
        if slow == "Rerank":
            reason += "; ours is the fast solution, not the integer program"
        verdict = graded(ratio <= 1.5, ratio <= 2) if is_price else graded(ratio >= paper / 2, ratio > 1)
        claims.append(Claim(question, text, paper, ratio, interval, "×", verdict, reason))
    return claims
