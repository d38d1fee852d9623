"""What makes a run the run it is, and what its pre-training owes to nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fairstream.data import EventLog
from fairstream.experiments.config import RunConfig
from fairstream.experiments.run import resolved
from fairstream.methods import METHODS

_WITHOUT_EFFECT: tuple[str, ...] = ("seed", "device", "engine", "n_resamples")
_OF_THE_FAIRNESS_LOSS = ("fairness_weight", "temperature", "n_fairness_negatives", "surrogate")
_OF_RERANKING = ("rerank_tolerance",)
_OF_THE_ADVERSARY = ("adversary_weight",)
_OUTSIDE_PRETRAINING = (
    "method",
    "update_epochs",
    "restart",
    "restart_every",
    "pretrain_ratio",
    "pretrain_events",
    "period",
    "n_periods",
    "n_blocks",
    "k",
    "min_group_size",
    *_OF_RERANKING,
)


def used_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide what a run does: those that its method uses, without the seed."""
    unused, method = _WITHOUT_EFFECT, METHODS[config["method"]]
    if (config.get("fairness") or method.fairness) is None:
        unused += _OF_THE_FAIRNESS_LOSS
    if method.reranker is None:
        unused += _OF_RERANKING
    if method.engine is None:
        unused += _OF_THE_ADVERSARY
    return {name: value for name, value in config.items() if name not in unused}


def run_id(log: EventLog, config: RunConfig) -> str:
    """Runs with the same id do the same; `config` is resolved for the log (`resolved`)."""
    return _digest(log, {**used_settings(config.model_dump()), "seed": config.seed})


def pretraining_id(log: EventLog, config: RunConfig) -> str:
    """Runs with the same id begin with the same pre-trained model."""
    kept = {
        name: value for name, value in used_settings(config.model_dump()).items() if name not in _OUTSIDE_PRETRAINING
    }
    method = METHODS[config.method]
    about = {"seed": config.seed, "fairness": config.fairness_name, "adversary": method.engine is not None}
    # A share, a number and a calendar are three ways to say where D_0 ends.
    return _digest(log, {**kept, **about, "n_events": resolved(log, config)[1].ends[0]})


def _digest(log: EventLog, settings: Mapping[str, Any]) -> str:
    groups = log.require_groups()
    about = [log.fingerprint(), groups.attribute, groups.names[0], groups.choice, settings]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]
